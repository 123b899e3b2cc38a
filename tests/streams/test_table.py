import csv
import itertools
import sys

import numpy as np
import pytest

from lifelabel.errors import UserError
from lifelabel.streams import table
from lifelabel.streams.class_names import COCO_CLASSES


def write(folder, text, name="photos.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder, text, root=None, **options):
    return table.read(write(folder, text), root, **options)


def content(*pools, classes):
    """The classes of each image, then those that are unknown with a question mark, by its name."""
    found = {}
    for pool in pools:
        for row, name in enumerate(pool.names):
            unknown = [] if pool.unknown is None else [f"?{classes[c]}" for c in pool.unknown[row]]
            found[name] = ";".join([*(classes[c] for c in pool.labels[row]), *unknown])
    return found


def all_labels(found):
    """The labels of each training and test image, by its name."""
    return content(found.train, found.test, classes=found.classes)


CONTENTS = {
    "many spellings of yes and no in one column per class": (
        "split,cat,path,dog,bird\nTraining,1,a.jpg,True,\ntest,0,b.jpg,no,YES\ntesting,0.0,c.jpg,1.0,false\n",
        ("cat", "dog", "bird"), {"a.jpg": "cat;dog;?bird", "b.jpg": "bird", "c.jpg": "dog"}, None,
    ),
    "quotes, commas, accents, line breaks and a byte order mark": (
        '\ufeff"image","labels","split"\r\n"a, b.jpg","cafe\u0301;""big"" cat, small",train\r\nb.jpg,caf\u00e9,test\r\n'
        "\r\n",
        ("caf\u00e9", '"big" cat, small'), {"a, b.jpg": 'caf\u00e9;"big" cat, small', "b.jpg": "caf\u00e9"}, {},
    ),
    "an image on several rows; the classes of a skipped row are not used": (
        "image,labels,split,task\na,x,train,1\nb,x,train,1\na,x,train,1\n./a,y;x,train,1\nb,z,test,1\nb,w,train,2\n"
        "t,x,test,1\n",
        ("x", "y"), {"a": "x;y", "b": "x", "t": "x"},
        {
            "rows that repeat an earlier one": 1,
            "rows that give an image other labels; the labels are united": 1,
            "rows that give an image another split or task; its first row counts": 2,
        },
    ),
    "limits of class names": (
        f"image,labels,split\na,{'n' * 201},train\nb,x\x01,train\nb2,?,train\nc,x,train\nd,x,test\n",
        ("x",), {"c": "x", "d": "x"}, {"rows with a class name that is not allowed": 3},
    ),
    "a question mark before a class: it may be named only as unknown": (
        "image,labels,split\na,cat;?dog,train\nb,?cat;cat; ? bird,train\nc,dog,test\n",
        ("cat", "dog", "bird"), {"a": "cat;?dog", "b": "cat;?bird", "c": "dog"}, None,
    ),
    "a list in a field of text": (
        "image,labels,split\n"
        """a,"['person', 'cup']",train\nb,"[""?caf\\u00e9"", ""x;y""]",train\nc,[],train\nd,[cup],test\n""",
        ("person", "cup", "caf\u00e9", "x;y", "[cup]"),
        {"a": "person;cup", "b": "x;y;?caf\u00e9", "c": "", "d": "[cup]"}, None,
    ),
    "an empty field of a class column": (
        "image,cat,dog,bird,split\na,1,,?,train\nb,0,0,1,test\n",
        ("cat", "dog", "bird"), {"a": "cat;?dog;?bird", "b": "bird"}, None,
    ),
    "labels that another row states": (
        "image,cat,dog,split\na,1,,train\na,,0,train\na,0,,train\nt,1,1,test\n",
        ("cat", "dog"), {"a": "cat", "t": "cat;dog"}, None,
    ),
    "a label that another row does not state": (
        "image,cat,dog,split\na,1,,train\na,0,?,train\nt,1,1,test\n",
        ("cat", "dog"), {"a": "cat;?dog", "t": "cat;dog"}, None,
    ),
    "unknown labels in a list, one of which another row states": (
        "image,labels,split\na,?cat;?dog,train\na,cat,train\nt,cat,test\n",
        ("cat", "dog"), {"a": "cat;?dog", "t": "cat"}, None,
    ),
    "a class that is never 0": (
        "image,cat,dog,split\na,1,,train\nb,,1,train\nc,0,1,train\nt,1,1,test\n",
        ("cat", "dog"), {"a": "cat;?dog", "b": "dog;?cat", "c": "dog", "t": "cat;dog"},
        {"classes that no training image is known to lack (an empty field is unknown, not 0)": 1},
    ),
}  # fmt: skip
"""A table, its classes, the labels of its images (None: unknown ones), and the problems that are counted."""


@pytest.mark.parametrize(("text", "classes", "labels", "problems"), CONTENTS.values(), ids=CONTENTS)
def test_the_content_of_a_table(tmp_path, text, classes, labels, problems):
    found = read(tmp_path, text)
    assert found.classes == classes
    assert all_labels(found) == labels
    assert problems is None or found.problems.counts == problems


def test_classes_of_one_column_are_in_the_order_of_first_appearance(tmp_path):
    path = write(tmp_path, "Image,LABELS,split\nb/1.jpg, dog ; cat,train\n2.jpg,,Train\n3.jpg,cat;;bird,TEST\n")
    found = table.read(path, None)
    assert found.classes == ("dog", "cat", "bird")
    assert content(found.train, classes=found.classes) == {"b/1.jpg": "dog;cat", "2.jpg": ""}
    assert content(found.test, classes=found.classes) == {"3.jpg": "cat;bird"}
    assert (found.name, found.root, found.train.task) == ("photos.csv", tmp_path, None)
    assert found.problems.lines() == ["1 class without a training image: bird"]
    assert table.read(path, tmp_path / "elsewhere").root == tmp_path / "elsewhere"


@pytest.mark.parametrize("name", ["val", "valid", "validation", "dev"])
def test_val_rows_are_neither_training_nor_test(tmp_path, name):
    """Without test rows they are used for test."""
    rows = f"image,labels,split\na.jpg,cat,train\nb.jpg,cat,{name}\n"
    found = read(tmp_path, rows + "c.jpg,cat,test\n")
    assert [list(pool.names) for pool in (found.train, found.val, found.test)] == [["a.jpg"], ["b.jpg"], ["c.jpg"]]
    assert "1 val image that is kept apart from training and test" in found.problems.lines()[0]
    found = read(tmp_path, rows)
    assert list(found.test.names) == ["b.jpg"] and not len(found.val.names)
    assert "used for test because the table has no test image" in found.problems.lines()[0]


@pytest.mark.parametrize("name", ["photos.tsv", "photos.txt"])
def test_tabs_separate_columns_if_the_header_has_one(tmp_path, name):
    path = write(tmp_path, "file_name\tlabels\tsplit\na,b.jpg\tx, y;z\ttrain\nc.jpg\tz\ttest\n", name)
    assert all_labels(table.read(path, None)) == {"a,b.jpg": "x, y;z", "c.jpg": "z"}


@pytest.mark.parametrize(
    ("tasks", "numbers", "names"),
    [
        (("10", "9", ""), [1, 0, -1], ("task 9", "task 10")),
        (("2.0", "1", "2"), [1, 0, 1], ()),
        (("0", "1"), [0, 1], ()),
        (("b", "a", "b"), [0, 1, 0], ("b", "a")),
        (("task10", "task2", "task1"), [2, 1, 0], ("task1", "task2", "task10")),
        (("May", "april", "MARCH", "Dec."), [2, 1, 0, 3], ("MARCH", "april", "May", "Dec.")),
        (("Jan 2025", "Feb 2024", "feb 2024"), [1, 0, 0], ("Feb 2024", "Jan 2025")),
        (("2024-05-01", "2024-05", "2023-12-31 08:30"), [2, 1, 0], ("2023-12-31 08:30", "2024-05", "2024-05-01")),
        (("2/1/2025", "1/3/2024"), [0, 1], ("2/1/2025", "1/3/2024")),
        (("may", "maybe"), [0, 1], ("may", "maybe")),
        (("\x1b[31m" + "x" * 99, "y"), [0, 1], ("\N{REPLACEMENT CHARACTER}[31m" + "x" * 55, "y")),
    ],
)
def test_tasks_are_in_the_order_of_numbers_and_dates_or_of_appearance(tmp_path, tasks, numbers, names):
    rows = "".join(f"{i}.jpg,x,train,{task}\n" for i, task in enumerate(tasks))
    found = read(tmp_path, f"image,labels,split,task\n{rows}t.jpg,x,test,{tasks[1]}\n")
    assert found.train.task.tolist() == numbers and found.task_names == names
    assert found.test.task.tolist() == [numbers[1]]
    if names and names[0] == "b":
        assert "2 tasks in the order of first appearance: b, a" in found.problems.lines()


def test_without_a_split_column_test_images_do_not_depend_on_other_rows(tmp_path):
    names = [f"{i}.jpg" for i in range(2000)]
    rows = [f"{name},x" for name in names]
    few, many = (read(tmp_path, "\n".join(["image,labels", *some])) for some in (rows[:1000], rows[::-1]))
    drawn = set(many.test.names)
    assert set(few.test.names) == drawn & set(names[:1000]) and 330 < len(drawn) < 470
    assert set(table.read(tmp_path / "photos.csv", None, seed=1).test.names) != drawn
    assert set(table.read(tmp_path / "photos.csv", None, test_share=0.5).test.names) > drawn


def test_rows_that_cannot_be_used_are_skipped_and_counted_with_their_lines(tmp_path):
    rows = (
        "image,cat,dog,split\nok.jpg,1,0,train\n,1,0,train\nshort.jpg,1\nmaybe.jpg,1,perhaps,train\n"
        "where.jpg,1,0,somewhere\n../out.jpg,1,0,train\n/etc/x.jpg,1,0,test\n\nfine.jpg,0,1,test\n"
        "https://host/a.jpg,1,0,train\n"
    )
    found = read(tmp_path, rows)
    assert set(all_labels(found)) == {"ok.jpg", "fine.jpg"}
    lines = "\n".join(found.problems.lines())
    for expected in (
        "1 row without an image: line 3\n",
        "1 row with fewer fields than the header: line 4: 2 instead of 4\n",
        "line 5: 'dog' is 'perhaps'",
        "line 6: 'somewhere'",
        "2 rows with an image path that is not allowed: line 7: '../out.jpg': leads out",
        "line 8: '/etc/x.jpg': an absolute path",
        "1 row whose image is a URL; images must be files: download them first: line 11: https://host/a.jpg\n",
        "1 class without a training image: dog",
    ):
        assert expected in lines + "\n", expected


def test_an_unclosed_quote_skips_only_the_lines_up_to_the_field_limit(tmp_path):
    long = csv.field_size_limit() // 10
    rows = 'image,labels,split\na.jpg,x,train\nb.jpg,"x,train\n' + f"c.jpg,{'y' * long},train\n" * 12 + "t.jpg,x,test\n"
    found = read(tmp_path, rows)
    assert set(all_labels(found)) == {"a.jpg", "t.jpg"}
    assert "1 part of the file that cannot be read: lines 3 to 13" in found.problems.lines()[0]


def rows_of(*lines):
    return "\n".join(["image,labels,split", *lines, ""])


def flags_of(header, lines):
    return "\n".join([f"image,{header}", *(f"{i}.jpg,{line}" for i, line in enumerate(lines)), ""])


URLS = [f"{kind}://host/a.jpg,x" for kind in ("http", "s3", "gs", "file")]
ONE_WIDE = "a,dog,cat,train", *(f"{i},dog,train" for i in range(8)), "t,cat,test"
REFUSED = [
    ("", "is empty", {}),
    ("image,labels\n", "no row that can be used", {}),
    ("image,labels\n../a,x\n", "no row that can be used: 1 row with an image path", {}),
    ("picture,labels\na.jpg,x\n", "no image column: name one column image, file", {}),
    ("image;labels\na.jpg;x\n", "separate the columns by commas", {}),
    ("image,split\na.jpg,train\n", "no labels: add a column 'labels'", {}),
    (rows_of("a,,train", "b,;,test"), "none of its images has a label", {}),
    ("image,cat,cat \na.jpg,1,0\n", "columns 2 and 3 are both called 'cat'", {}),
    ("image,cat,\na.jpg,1,0\n", "column 3 is a class without a name", {}),
    ("image,labels,split,Split\na.jpg,x,train,train\n", "2 columns called 'split'", {}),
    (rows_of("a,x,train"), "no test image: check its column 'split'", {}),
    (rows_of("a,x,train", "b,x"), "'split' (1 row with fewer fields than the header)", {}),
    (rows_of("a,x,test"), "no training image", {}),
    (rows_of("a,x,test"), "no training image", {"required": ("training",)}),
    ("image,labels\na,x\nb,\u00e9t\u00e9\n".encode("latin-1"), "line 3 has the byte 0xE9; save the table as UTF-8", {}),
    ("image,labels\na.jpg,x\n".encode("utf-16"), "line 1 has the byte 0xFF", {}),
    (flags_of("cat,dog", ["x,0"] * 6 + ["0,0"] * 3), "6 of 9 rows have a label that is neither 0 nor 1 (line 2", {}),
    (flags_of("cat,dog", ["x,0"] * 4 + ["0,0"] * 5), "has a label (4 rows with a label that is neither 0 nor 1", {}),
    (flags_of("cat,dog", ["1,0,"] * 2), "header (line 2: 4 instead of 3): write a field", {}),
    (rows_of("a,dog, cat,train", "b,dog,cat,train", "c,dog,test"), "2 of 3 rows have more fields than the", {}),
    (rows_of("a,dog, cat,train", "b,dog,cat,train", "c,dog,test"), "separate labels by ';', or write a field", {}),
    (rows_of(*ONE_WIDE), "1 of 10 rows", {}),  # no other row has two labels
    ("\n".join(["image,labels", *URLS, "a,x"]), "4 of 5 images are URLs (line 2: http://host/a.jpg): images must", {}),
    (rows_of("a,x,train"), "stream.separator) is empty", {"separator": ""}),
    (rows_of("a,cat,train"), "--alias takes OLD=NEW, two class names, not 'cat': it has no =", {"alias": ["cat"]}),
    (rows_of("a,cat,train"), "not 'cat=': a class without a name", {"alias": ["cat="]}),
    (rows_of("a,cat,train"), "for --alias: 'cta': did you mean 'cat'", {"alias": ["cta=dog"]}),
    (rows_of("a,cat,train"), "--alias gives 'cat' two names: keep one", {"alias": ["cat=a", "cat=b"]}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected", "options"), REFUSED, ids=[expected for _, expected, _ in REFUSED])
def test_a_table_that_cannot_be_used_is_refused_with_one_line(tmp_path, text, expected, options):
    with pytest.raises(UserError) as error:
        read(tmp_path, text, **options)
    assert expected in str(error.value) and "\n" not in str(error.value)
    assert str(tmp_path / "photos.csv") in str(error.value) or options


def test_too_many_rows_or_classes_are_refused(tmp_path, monkeypatch):
    path = write(tmp_path, "image,labels,split\na.jpg,x;y,train\nb.jpg,z,test\n")
    monkeypatch.setattr(table, "_MAX_CLASSES", 2)
    with pytest.raises(UserError, match="the column 'labels' has more than 2 classes"):
        table.read(path, None)
    monkeypatch.setattr(table, "_MAX_ROWS", 1)
    with pytest.raises(UserError, match="more than 1 rows"):
        table.read(path, None)


def test_files_that_are_not_tables_are_refused(tmp_path):
    with pytest.raises(UserError, match="there is no table"):
        table.read(tmp_path / "none.csv", None)
    with pytest.raises(UserError, match=r"give a \.csv"):
        table.read(write(tmp_path, "x", "photos.xlsx"), None)


@pytest.fixture
def write_parquet(tmp_path):
    """Writes columns into a Parquet file, with options of pyarrow, and returns its path."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def write(columns, **options):
        path = tmp_path / "photos.parquet"
        parquet.write_table(arrow.table(columns), path, **options)
        return path

    return write


def test_parquet_gives_the_same_result_as_text(tmp_path, write_parquet):
    columns = {"image": ["a.jpg", "b.jpg", None], "cat": [1.0, None, 1.0], "dog": [True, False, True]}
    columns |= {"task": [2, 1, 1], "split": ["train", "test", "test"]}
    found = table.read(write_parquet(columns), None)
    assert all_labels(found) == {"a.jpg": "cat;dog", "b.jpg": "?cat"}
    assert np.array_equal(found.train.task, [1])
    assert found.problems.lines()[0] == "1 row without an image: row 3"

    lists = {"file": ["a.jpg", "b.jpg"], "labels": [["x;y", " z ", "?w", None], []], "split": ["train", "test"]}
    path = write_parquet(lists)
    assert all_labels(table.read(path, None)) == {"a.jpg": "x;y;z;?w", "b.jpg": ""}

    data = path.read_bytes()
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        table.read(write(tmp_path, data[: len(data) // 2], "c.parquet"), None)


def test_parquet_that_unpacks_to_more_than_it_can_be_is_refused_before_it_is_unpacked(write_parquet, monkeypatch):
    arrow = pytest.importorskip("pyarrow")

    def refused(message, **columns):
        path = write_parquet(columns, compression="zstd", write_statistics=False)
        with pytest.raises(UserError, match=message):
            table.read(path, None)

    def repeated(value, count):
        return arrow.array([value] * count).dictionary_encode()

    refused(
        r"200,000 rows in .* bytes: they cannot be", image=repeated("a.jpg", 200_000), labels=repeated("x", 200_000)
    )
    refused("'labels' has a text of more than 131,072 bytes", image=["a.jpg"], labels=["x" * 200_000])
    refused("'labels' has a text of more than 131,072 bytes", image=["a.jpg"], labels=[["x" * 200_000, "y"]])
    refused("'image' has the type struct<", image=[{"bytes": "x"}], labels=["x"])
    monkeypatch.setattr("lifelabel.streams.parquet._MAX_PAGES", 1 << 20)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.iter_batches", None)  # no page is read
    refused("column 'labels' takes too much memory: write pages", image=["a.jpg"], labels=["x" * 2_000_000])
    refused("column 'labels' takes too much memory", image=["a.jpg"], labels=repeated("x" * 2_000_000, 1))
    monkeypatch.setattr("lifelabel.streams.parquet._MAX_VALUES", 1000)
    refused("column 'labels.list.element' takes too much", image=["a.jpg"], labels=[["x"] * 1001])
    monkeypatch.setattr(table, "_MAX_ROWS", 1)
    refused("has more than 1 rows: use a smaller table", image=["a.jpg", "b.jpg"], labels=["x", "x"])


def test_parquet_reads_only_the_columns_of_the_table_in_any_encoding(write_parquet):
    columns = {
        "file": [f"{i}.jpg" for i in range(3000)],
        "labels": [["x"], ["y", None], None] * 1000,
        "split": ["train", "test", "train"] * 1000,
        "objects": [{"box": [1.5]}] * 3000,
    }
    plain = {"use_dictionary": False, "column_encoding": {"file": "DELTA_BYTE_ARRAY"}}
    for encoding, version in itertools.product((plain, {"row_group_size": 700}), ("1.0", "2.0")):
        path = write_parquet(columns, data_page_version=version, data_page_size=999, **encoding)
        assert all_labels(table.read(path, None)) == {f"{i}.jpg": ("x", "y", "")[i % 3] for i in range(3000)}


def test_parquet_without_pyarrow_names_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'lifelabel\[parquet\]'"):
        table.read(write(tmp_path, b"PAR1", "photos.parquet"), None)


def test_lists_in_fields_of_text_need_no_separator(tmp_path):
    many = "".join(f"{i}.jpg,\"['{a}', '{b}']\"\n" for i, (a, b) in enumerate(itertools.permutations("abcd", 2)))
    assert set(read(tmp_path, "image,labels\n" + many, test_share=0.5).classes) == set("abcd")


def test_a_table_may_have_only_the_required_kind_of_images(tmp_path):
    path = write(tmp_path, "image,labels,split\na.jpg,x,test\nb.jpg,y,test\n")
    found = table.read(path, None, required=("test",))
    assert (len(found.train.names), len(found.test.names), not found.problems) == (0, 2, True)
    path = write(tmp_path, "image,labels\na.jpg,x\nb.jpg,y\n")
    assert len(table.read(path, None, test_share=0, required=("training",)).train.names) == 2
    assert len(table.read(path, None, test_share=1, required=("test",)).test.names) == 2


def listed(labels):
    """A table with one training image for each field of `labels`, and a test image with the last of them."""
    rows = "".join(f'{i}.jpg,"{text}",train\n' for i, text in enumerate(labels))
    return f'image,labels,split\n{rows}t.jpg,"{labels[-1]}",test\n'


def sets_of_names(joined):
    names = ("dog", "cat", "bird", "car", "tree")
    return [joined.join(some) for size in (1, 2, 3) for some in itertools.permutations(names, size)]


@pytest.mark.parametrize("separator", [",", "|", "/", ":", " "])
@pytest.mark.parametrize("unknown", ["", "?"])
def test_labels_with_another_separator_are_refused_with_the_option_to_give(tmp_path, separator, unknown):
    joined = {",": ", ", "/": " / "}.get(separator, separator) + unknown
    path = write(tmp_path, listed(sets_of_names(joined)))
    with pytest.raises(UserError) as error:
        table.read(path, None)
    expected = f"separated by '{separator}' and not by ';' (such as 'dog{joined}cat'): give --set stream.separator="
    assert expected in str(error.value)
    found = table.read(path, None, separator=separator)
    assert set(found.classes) == {"dog", "cat", "bird", "car", "tree"}


@pytest.mark.parametrize(
    "labels",
    [
        ["dog, cat", "dog", "cat", "dog"],
        ["dog|cat", "cat|bird", "bird|dog"],
        # a fixed order, and no image with one label
        [" ".join(some) for size in (2, 3, 4, 5) for some in itertools.combinations("abcdefg", size)],
        [",".join(some) for some in itertools.combinations("abcdefg", 2)],
    ],
    ids=lambda labels: labels[0],
)
def test_another_separator_is_found_in_few_labels_and_in_sorted_ones(tmp_path, labels):
    with pytest.raises(UserError, match="the labels look separated by"):
        read(tmp_path, listed(labels))


@pytest.mark.parametrize(
    "labels",
    [
        ["dog", "hot dog", "traffic light", "stop sign", "stop light", "24/7 shop", "R&B", "1:1"],
        ["black, white", *("black", "white", "red", "green", "blue", "grey") * 3],
        ["black, white;red", "black, red;white", "red, white;black", "red", "white"],
        [f"{a} {b}" for a in ("red", "blue", "green", "black") for b in ("car", "bus", "bike", "hat")],
        [f"{a}/{b}" for a in ("apple", "corn", "grape") for b in ("healthy", "rust", "rot")],
        ["table", "chair", "table, dining", "table, coffee", "chair, garden", "lamp, floor"],
        ["tench, Tinca tinca", "great white shark, white shark, man-eater", "jay", "bee"],
        list(COCO_CLASSES),
        ["Paris, France"],
    ],
    ids=lambda labels: labels[0],
)
def test_names_with_a_separator_in_them_are_allowed(tmp_path, labels):
    found = read(tmp_path, listed(labels))
    assert set(found.classes) == {name for text in labels for name in text.split(";")}


def test_few_rows_that_are_too_wide_are_counted(tmp_path):
    found = read(tmp_path, rows_of(*ONE_WIDE[:-1], "t,cat;dog,test"))
    assert found.problems.counts == {"rows with more fields than the header": 1, "classes without a training image": 1}


@pytest.mark.parametrize("name", ["label", "Tags", "classes", "class", "categories"])
def test_a_column_of_text_with_another_name_than_labels(tmp_path, name):
    rows = f"image,width,{name},split\na,640,dog;cat,train\nb,640,,train\nc,640,cat,test\n"
    with pytest.raises(UserError) as error:
        read(tmp_path, rows)
    assert f"the column '{name}' has text (line 2: 'dog;cat'): did you mean 'labels'?" in str(error.value)
    found = read(tmp_path, f"image,cat,{name},split\na,1,0,train\nb,0,1,test\n")
    assert found.classes == ("cat", name)


def test_names_that_differ_only_in_case_spaces_underscores_or_hyphens(tmp_path):
    """They are refused, or merged: into the name that the model has, else the most frequent one."""
    path = write(tmp_path, listed(["cat", "Cat", "hot dog", "hot_dog;?Cat", "?hot-dog;cat", "Cat"]))
    with pytest.raises(UserError, match=r"only in case.*: cat / Cat, hot dog / hot_dog / hot-dog; give --merge-case"):
        table.read(path, None)
    found = table.read(path, None, merge_case=True)
    assert found.classes == ("Cat", "hot dog") and not found.problems
    expected = ["Cat", "Cat", "hot dog", "hot dog;?Cat", "Cat;?hot dog", "Cat"]
    assert list(content(found.train, classes=found.classes).values()) == expected
    known = ("Hot Dog", "CAT", "cat")
    assert table.read(path, None, merge_case=True, alias=["Cat=cat"], known=known).classes == ("cat", "Hot Dog")
    for given in ({"merge_case": True}, {"alias": ["Cat=cat"]}):
        with pytest.raises(UserError, match=r"differ from another \(or from a class of the model\) only in case"):
            table.read(path, None, known=known, **given)
    apart = table.read(path, None, alias=["Cat=big cat", "hot_dog=snack", "hot-dog=snack"])
    assert apart.classes == ("cat", "big cat", "hot dog", "snack")

    flags = write(tmp_path, "image,Dog,dog,cup,split\na,0,,1,train\nb,1,0,0,train\nc,0,0,1,test\n")
    found = table.read(flags, None, alias=["Dog=dog"])
    assert all_labels(found) == {"a": "cup;?dog", "b": "dog", "c": "cup"}


def test_absolute_paths_under_the_root_become_relative(tmp_path):
    target, root = tmp_path / "disk", tmp_path / "photos"
    target.mkdir()
    root.symlink_to(target)
    paths = [root / "a" / "1.jpg", target / "2.jpg", "3.jpg", f"{root}/../secret.jpg", f"{root}-2/4.jpg", "/etc/5.jpg"]
    path = write(tmp_path, "image,labels,split\nt,x,test\n" + "".join(f"{name},x,train\n" for name in paths))
    found = table.read(path, root)
    assert list(found.train.names) == ["a/1.jpg", "2.jpg", "3.jpg"]
    reasons = " ".join(found.problems.lines())
    assert "leads out of its folder" in reasons
    assert f"'/etc/5.jpg': an absolute path that is not under the root {root}" in reasons
    assert list(table.read(path, None).train.names) == ["photos/a/1.jpg", "disk/2.jpg", "3.jpg", "photos-2/4.jpg"]
