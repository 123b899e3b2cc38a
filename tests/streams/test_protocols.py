import dataclasses
from pathlib import Path

import numpy as np
import pytest

from lifelabel.errors import UserError
from lifelabel.images.source import Names
from lifelabel.options import read
from lifelabel.streams import paper
from lifelabel.streams.collection import Collection, Pool
from lifelabel.streams.labels import Labels
from lifelabel.streams.protocols import ProtocolOptions, make_stream, special_and_mixed

NOWHERE = Path("no such folder")
LETTERS = tuple("abcdef")


def pool(classes, images, tasks=None):
    """From {"name": "labels as words"}."""
    rows = [[classes.index(label) for label in labels.split()] for labels in images.values()]
    task = None if tasks is None else np.array(tasks)
    return Pool(Names(images), Labels.from_lists(rows, len(classes)), task)


def collection(train, test=None, classes=LETTERS, train_tasks=None, test_tasks=None):
    test = {f"t-{name}": labels for name, labels in train.items()} if test is None else test
    return Collection("made", NOWHERE, classes, pool(classes, train, train_tasks), pool(classes, test, test_tasks))


def random_collection(images=400, classes=12, seed=0, order=None):
    rng = np.random.default_rng(seed)
    words = tuple(f"class {k:02}" for k in range(classes))
    chance = rng.uniform(0.02, 0.5, classes)
    shown = rng.random((2, images, classes)) < chance
    rows = np.arange(images) if order is None else order
    names = Names(f"img {row:04}.jpg" for row in rows)
    return Collection("random", NOWHERE, words, *(Pool(names, Labels.from_dense(split[rows])) for split in shown))


def make(source, dataset="", default_tasks=None, **options):
    return make_stream(source, read(ProtocolOptions, options, "stream"), "test", dataset, default_tasks)


def task_of(split):
    """Which tasks each image name belongs to."""
    tasks = [[task for task, rows in enumerate(split.rows) if row in rows] for row in range(len(split))]
    return dict(zip(split.names, tasks, strict=True))


def classes_of(stream):
    return [" ".join(task.classes) for task in stream.tasks]


# Classes and tasks


def sizes(stream):
    return [len(task.classes) for task in stream.tasks]


def test_sizes_of_tasks():
    source = random_collection(classes=20)
    for options, expected in (
        ({"base": 0, "step": 4}, [4] * 5),  # B0-C4
        ({"base": 10, "step": 2}, [10, 2, 2, 2, 2, 2]),  # B10-C2
        ({"step": 4}, [4] * 5),
        ({"base": 20, "step": 4}, [20]),
        ({"tasks": 3}, [7, 7, 6]),
        ({"base": 10, "step": 3}, [10, 3, 3, 3, 1]),  # the last task has the rest, and this is reported
    ):
        stream = make(source, **options)
        assert sizes(stream) == expected
        assert ("last task" in " ".join(stream.problems.lines())) == (expected[-1] == 1)
    assert "1 class in the last task, fewer than stream.step=3: class 19" in stream.problems.lines()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "20 classes are not divided into tasks: give stream.tasks=N, or stream.step=N classes per task"),
        ({"tasks": 2, "step": 3}, r"stream.tasks=2 contradicts stream.step=3: give only one of them \(NAME=none rem"),
        ({"tasks": 2, "base": 3}, r"stream.tasks=2 contradicts stream.base=3: give only one of them \(NAME=none rem"),
        ({"tasks": 21}, "20 classes cannot be divided into 21 tasks: lower stream.tasks"),
        ({"base": 10}, "stream.base=10 needs stream.step, the number of classes of each later task"),
        ({"base": 21, "step": 1}, "stream.base=21 is more than the 20 classes of the source: lower it"),
        ({"tasks": 1, "top": 21}, "stream.top=21 is more than the 20 classes of the source: lower it"),
        ({"tasks": 1, "order": "alphabetic"}, r"'alphabetic' is neither one of source, paper, .* nor a file"),
    ],
)
def test_classes_that_cannot_be_divided(options, message):
    with pytest.raises(UserError, match=message):
        make(random_collection(classes=20), **options)


def test_orders():
    source = collection({"1": "b c", "2": "b a", "3": "c b", "4": "d", "5": "f"}, classes=tuple("fdcba"))
    assert classes_of(make(source, tasks=1)) == ["f d c b a"]
    assert classes_of(make(source, tasks=1, order="alphabetical")) == ["a b c d f"]
    assert classes_of(make(source, tasks=1, order="frequency")) == ["b c f d a"]  # equals in the source's order
    assert classes_of(make(source, tasks=1, order="frequency", top=2)) == ["b c"]
    assert classes_of(make(source, tasks=1, top=3)) == ["f c b"]


def test_a_shuffled_order_follows_from_seed_and_names():
    train = {str(k): name for k, name in enumerate(LETTERS)}
    orders = [classes_of(make(collection(train), tasks=1, order="shuffled", seed=seed))[0] for seed in range(5)]
    assert len(set(orders)) > 2
    assert all(sorted(order.split()) == list(LETTERS) for order in orders)
    turned = collection(train, classes=LETTERS[::-1])
    assert classes_of(make(turned, tasks=1, order="shuffled", seed=3)) == [orders[3]]


def test_an_order_file_with_tasks(tmp_path):
    file = tmp_path / "order.txt"
    file.write_text("\ufeff\nc\n a \n\n\nb\n\n", encoding="utf-8")
    source = collection({"1": "a", "2": "b d", "3": "c", "4": "d"})
    stream = make(source, order=str(file))
    assert classes_of(stream) == ["c a", "b"]
    assert "3 classes left out by order.txt: d, e, f" in stream.problems.lines()
    assert "1 training image without a label of the stream, left out: 4" in stream.problems.lines()
    assert stream.rules["order"] == "file order.txt"
    assert make(source, order=str(file), tasks=2, top=3).fingerprint == stream.fingerprint
    message = r"stream.tasks=3 contradicts order .*order.txt, which defines 2 tasks: remove it"
    with pytest.raises(UserError, match=message):
        make(source, order=str(file), tasks=3)


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [("c\r\na\r\nb\r\n", "abc", ["c a", "b"]), ("b\ncafe\u0301\na\n", ("a", "b", "caf\xe9"), ["b caf\xe9", "a"])],
)
def test_an_order_file_without_blank_lines_is_an_order_in_any_form_of_unicode(tmp_path, text, names, expected):
    (tmp_path / "order.txt").write_text(text, encoding="utf-8", newline="")
    source = collection({str(k): name for k, name in enumerate(names)}, classes=tuple(names))
    assert classes_of(make(source, order=str(tmp_path / "order.txt"), step=2)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a\n\nbb\n", r"unknown class in .*order.txt, line 3: 'bb': .*\(known: a, b, c, d, e, f\)"),
        (b"a\nb\n\na\n", r"order.txt, line 4: 'a' is named twice, first in line 1"),
        (b"\n \n", r"order.txt contains no class: write one class per line"),
        (b"\xff\n", r"order.txt is not UTF-8 text: save it as UTF-8, one class per line"),
    ],
)
def test_bad_order_files(tmp_path, text, message):
    file = tmp_path / "order.txt"
    file.write_bytes(text)
    with pytest.raises(UserError, match=message):
        make(collection({"1": "a"}), order=str(file), tasks=1)


def test_the_order_of_the_paper():
    named = [name for task in paper.SPLIT_WIDE for name in task]
    classes = ("zebra", *reversed(named[1:]))
    train = {str(k): name for k, name in enumerate(classes)} | {"more": "zebra"}
    source = collection(train, classes=classes)
    stream = make(source, "nus-wide", order="paper")
    assert [task.classes for task in stream.tasks] == [paper.SPLIT_WIDE[0][1:], *paper.SPLIT_WIDE[1:]]
    lines = stream.problems.lines()
    assert "1 class that made does not have: mountain" in lines
    assert "1 class among the 21 most frequent that the paper does not have: zebra" in lines
    for given, message, dataset, options in (
        (source, "stream.order=paper exists only for coco and nus-wide: choose another order", "voc", {}),
        (source, "stream.step=4 contradicts order paper, which defines 7 tasks: remove it", "nus-wide", {"step": 4}),
        (collection({"1": "a"}), r"no class of task 1 \(mountain, ocean, person\): choose another", "nus-wide", {}),
    ):
        with pytest.raises(UserError, match=message):
            make(given, dataset, order="paper", **options)


# The disjoint protocol


def test_special_images_go_to_their_task_and_none_is_lost():
    source = random_collection()
    stream = make(source, tasks=4)
    for pool, split in ((source.train, stream.train), (source.test, stream.test)):
        tasks, labels = task_of(split), dict(zip(split.names, split.labels, strict=True))
        for name, columns in zip(pool.names, pool.labels, strict=True):
            assert (name in tasks) == bool(len(columns))
            if len(columns):
                (task,) = tasks[name]
                assert task in columns // 3 and labels[name].tolist() == columns.tolist()
    assert stream.classes == source.classes
    empty = int((source.train.labels.per_image() == 0).sum())
    assert stream.problems.counts["training images without a label of the stream, left out"] == empty > 0


def test_special_and_mixed_are_counted():
    train = {"1": "a", "2": "a b", "3": "a c", "4": "c d", "5": "b d", "6": "e a c", "7": "e f"}
    stream = make(collection(train), tasks=3)
    counts = special_and_mixed(stream)
    assert [special for special, _ in counts] == [2, 1, 1]
    assert [len(rows) for rows in stream.train.rows] == [sum(pair) for pair in counts]
    assert sum(mixed for _, mixed in counts) == 3


def test_the_tasks_of_images_depend_only_on_seed_and_names():
    first = make(random_collection(), tasks=4)
    order = np.random.default_rng(5).permutation(400)
    assert make(random_collection(order=order), tasks=4).fingerprint == first.fingerprint
    other = make(random_collection(), tasks=4, seed=1)
    assert other.fingerprint != first.fingerprint
    assert [len(rows) for rows in other.train.rows] == [len(rows) for rows in first.train.rows]


def test_truth_is_computed_from_the_training_images_of_the_stream():
    stream = make(collection({"1": "a b", "2": "a", "3": "b c", "4": "d"}), order="alphabetical", top=3, tasks=3)
    assert stream.classes == ("a", "b", "c")
    assert stream.truth.tolist() == [[1, 0.5, 0], [0.5, 1, 1], [0, 0.5, 1]]
    assert stream.train.complete and len(stream.train) == 3


def test_problems_of_the_collection_are_kept_and_not_changed():
    source = collection({"1": "a", "2": "b", "3": "a c"}, test={"x": "a"})
    source.problems.add("rows without an image", "line 3")
    stream = make(source, top=3, tasks=2)
    lines = stream.problems.lines()
    assert lines[0] == "1 row without an image: line 3"
    assert "2 classes without a test image: b, c" in lines
    assert "1 task without a test image: 2" in lines
    assert source.problems.lines() == lines[:1]


def test_a_class_and_a_task_without_an_image():
    stream = make(collection({"1": "a", "2": "a", "3": "b c", "4": "d"}, classes=tuple("abcd")), tasks=2)
    assert task_of(stream.train)["3"] == [1]
    assert stream.problems.lines() == ["1 class that no training image of their task shows: b"]
    message = r"task 2 \(c, d\) has no training image of its classes in made: choose other classes or"
    with pytest.raises(UserError, match=message):
        make(collection({"1": "a", "2": "b e"}), tasks=3)
    with pytest.raises(UserError, match=r"no test image of made shows a class .*\(.*1 test image without a label"):
        make(collection({"1": "a", "2": "b"}, {"3": ""}), tasks=2, top=2)


# The overlapping protocol


def test_overlap_trains_every_task_that_owns_a_label_and_tests_from_the_first():
    source = random_collection()
    stream = make(source, base=6, step=2, protocol="overlap", order="alphabetical")
    owner = [0] * 6 + [1, 1, 2, 2, 3, 3]
    train, test = task_of(stream.train), task_of(stream.test)
    for row, name in enumerate(source.train.names):
        assert train.get(name, []) == sorted({owner[c] for c in source.train.labels[row].tolist()})
    for row, name in enumerate(source.test.names):
        assert test.get(name, []) == [owner[c] for c in source.test.labels[row].tolist()][:1]
    assert stream.train.complete and stream.truth is not None


# Tasks that the source gives


def test_given_tasks_decide_and_classes_follow():
    train = {"1": "a b", "2": "c", "3": "a", "4": "d c"}
    source = collection(train, {"x": "a c", "y": "c"}, train_tasks=[1, 0, 1, 0], test_tasks=[1, -1])
    stream = make(source)
    assert classes_of(stream) == ["c d", "a b"]
    assert task_of(stream.train) == {"2": [0], "4": [0], "1": [1], "3": [1]}
    assert task_of(stream.test) == {"y": [0], "x": [1]}
    assert "2 classes left out because no training image with a task has them: e, f" in stream.problems.lines()
    assert stream.rules["tasks"] == "given by the source"
    assert not stream.train.complete and stream.truth is None  # each image has only labels of its own task
    assert special_and_mixed(stream) == []
    other = make(dataclasses.replace(source, test=dataclasses.replace(source.test, task=np.array([2, -1]))))
    assert task_of(other.test) == {"y": [0]}
    assert "1 test image of a task that the stream does not have: x" in other.problems.lines()
    with pytest.raises(
        UserError, match=r"stream.tasks=3 contradicts the task column, which defines 2 tasks: remove it"
    ):
        make(source, tasks=3)
    train = {"1": "a", "2": "c a", "3": "b", "4": "b c", "5": "a b c"}  # a class belongs to the first task that has it
    assert classes_of(make(collection(train, {"x": "a"}, train_tasks=[0, 1, 0, 1, -1]))) == ["a b", "c"]


def test_listed_labels_of_later_tasks_are_unknown_unless_an_image_has_one():
    train, test = {"1": "a", "2": "b a"}, {"3": "a", "4": "b"}
    source = collection(train, test, train_tasks=[0, 1], test_tasks=[0, 1])
    columns = make(source)  # in 0/1 columns a 0 is a 0
    assert columns.train.unknown is None and columns.test.unknown is None
    stream = make(dataclasses.replace(source, listed=True))
    assert [part.unknown.dense().tolist() for part in (stream.train, stream.test)] == [[[False, True], [False] * 2]] * 2
    assert "1 test image whose labels of later classes are unknown (none of them has one)" in stream.problems.lines()
    assert stream.fingerprint != columns.fingerprint and stream.truth is None
    source = collection(train, {"3": "a b", "4": "b"}, train_tasks=[0, 1], test_tasks=[0, 1])
    assert make(dataclasses.replace(source, listed=True)).test.unknown is None


def test_a_given_task_without_a_new_class_needs_a_class_file(tmp_path):
    train = {"1": "a c", "2": "c", "3": "b", "4": "a", "5": "a b c"}
    source = collection(train, {"x": "a"}, train_tasks=[0, 1, 0, 1, -1])
    message = r"task 2/2 of made has no new class: .* \(stream.order=FILE\)"
    with pytest.raises(UserError, match=message):
        make(source)
    file = tmp_path / "order.txt"
    file.write_text("a\nb\n\nc\n")
    stream = make(source, order=str(file))
    assert task_of(stream.train) == {"1": [0], "3": [0], "2": [1], "5": [1]}  # 5 goes to the smaller task
    assert "1 training image whose task owns none of their labels, left out: 4" in stream.problems.lines()
    assert stream.train.complete and stream.truth is not None
    assert task_of(make(source, order=str(file), protocol="overlap").train)["5"] == [0, 1]


def test_a_given_task_without_a_class():
    with pytest.raises(UserError, match=r"task 2/3 of made has no new class: .* join it with another task"):
        make(collection({"1": "a", "2": "b", "3": ""}, train_tasks=[0, 2, 1]))
    source = collection({"1": "a b", "2": "b"}, train_tasks=[0, 1])
    message = r"may \(2/2\) of made has no new class \(the tasks are, in this order: april, may\): .* correct the order"
    with pytest.raises(UserError, match=message):
        make(dataclasses.replace(source, task_names=("april", "may")))


def test_default_number_of_tasks_and_rules(tmp_path):
    """The default number of tasks is used only if options, the order and the images do not define tasks."""
    source, file = random_collection(classes=6), tmp_path / "order.txt"
    file.write_text("class 00\nclass 01\n\nclass 02\n")

    def cut(source, **options):
        stream = make(source, default_tasks=4, **options)
        return sizes(stream), stream.rules.get("tasks")

    assert cut(source) == ([2, 2, 1, 1], 4)
    assert cut(source, top=3) == ([1, 1, 1], 3)
    assert cut(source, tasks=2) == ([3, 3], 2)
    assert cut(source, base=4, step=1) == ([4, 1, 1], None)
    rules = {"source": "random", "protocol": "disjoint", "order": "source", "base": 4, "step": 1, "seed": 3}
    assert make(source, base=4, step=1, seed=3).rules == rules
    assert cut(source, order=str(file)) == ([2, 1], 2)
    given = collection({"1": "a", "2": "b"}, train_tasks=[0, 1])
    assert cut(given) == ([1, 1], "given by the source")


def test_images_without_a_label_are_negative_examples_of_an_only_task():
    stream = make(collection({"1": "a", "2": ""}, {"3": "", "4": "a"}), tasks=1)
    assert task_of(stream.train) == {"1": [0], "2": [0]} and task_of(stream.test) == {"3": [0], "4": [0]}
    assert not any("without a label" in line for line in stream.problems.lines())


def test_training_images_without_a_label_of_their_task_are_negative_examples():
    """In the task that the source states, else in one task of which a label is known."""
    given = {"1": "a", "2": "b", "3": "", "4": "", "5": "a"}
    source = collection(given, classes=("a", "b"), train_tasks=[0, 1, 1, 0, 1])
    stream = make_stream(source, ProtocolOptions(labels="known"), "s", negatives=True)
    assert task_of(stream.train) == {"1": [0], "4": [0], "2": [1], "3": [1], "5": [1]}
    assert "3 training images without a label of their task, used" in "".join(stream.problems.lines())
    assert stream.labels == "known" and stream.train.complete  # image 5 states a label of an earlier task
    without = make_stream(source, ProtocolOptions(), "s", negatives=False)
    assert task_of(without.train) == {"1": [0], "2": [1]}
    lines = "\n".join(without.problems.lines())
    hint = r"left out (stream.negatives=true trains on them)"
    assert f"2 training images without a label of the stream, {hint}: 3, 4" in lines
    assert f"1 training image whose task owns none of their labels, {hint}: 5" in lines

    free = pool(("a", "b"), {"1": "a", "2": "b", "3": "", "4": "", "5": "a b", "6": ""})
    unknown = Labels.from_lists([[], [], [0], [0], [], [0, 1]], 2)
    source = dataclasses.replace(source, train=dataclasses.replace(free, unknown=unknown))
    for protocol in ("disjoint", "overlap"):
        options = ProtocolOptions(tasks=2, protocol=protocol)
        stream = make_stream(source, options, "s", negatives=True)
        tasks = {"1": [0], "5": [0] if protocol == "disjoint" else [0, 1], "2": [1], "3": [1], "4": [1]}
        assert task_of(stream.train) == tasks
        assert "1 training image without a label of the stream, left out: 6" in stream.problems.lines()
