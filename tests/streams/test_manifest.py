import dataclasses
import datetime
import hashlib
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from lifelabel.errors import UserError
from lifelabel.images.source import Names
from lifelabel.streams import manifest
from lifelabel.streams.collection import Collection, Pool
from lifelabel.streams.labels import Labels, Unknown
from lifelabel.streams.protocols import ProtocolOptions, make_stream

CLASSES = ("a", "yes", "1", "b: #c", "é", "'\"", "null", "[x")
ODD = ["a b.jpg", " lead.jpg", "#c.jpg", "key: v.jpg", "- x.jpg", "é/日本.jpg", "'q\".jpg", "0,1 2.jpg", "tail .jpg"]
ODD += ["😀.jpg"]


def stream(images=60, seed=0, names=(), root=Path("no such folder"), **options):
    rng = np.random.default_rng(seed)
    pools = []
    for kind in ("train", "test"):
        shown = rng.random((images, len(CLASSES))) < 0.3
        texts = [*names, *(f"{kind}/{row:03}.jpg" for row in range(len(names), images))]
        pools.append(Pool(Names(texts), Labels.from_dense(shown)))
    options = ProtocolOptions(**{"tasks": 4, **options})
    return make_stream(Collection("made", root, CLASSES, *pools), options, "name: #1", "voc")


def same(split, other):
    return (
        list(split.names) == list(other.names)
        and split.labels == other.labels
        and all(np.array_equal(a, b) for a, b in zip(split.rows, other.rows, strict=True))
    )


@pytest.mark.parametrize(("protocol", "complete"), [("disjoint", True), ("overlap", True), ("overlap", False)])
def test_a_complete_manifest_gives_the_same_stream_again(tmp_path, protocol, complete):
    """If no label is hidden, as with overlapping tasks, every manifest is complete."""
    made = stream(protocol=protocol, names=ODD)
    assert manifest.write(made, tmp_path / "m.yaml", complete) == made.fingerprint
    again = manifest.read(tmp_path / "m.yaml", None)
    assert again.fingerprint == made.fingerprint
    assert (again.name, again.dataset, again.rules, again.tasks) == (made.name, made.dataset, made.rules, made.tasks)
    assert same(again.train, made.train) and same(again.test, made.test)
    assert again.train.complete and np.array_equal(again.truth, made.truth)
    assert manifest.write(again, tmp_path / "n.yaml", complete) == made.fingerprint
    assert (tmp_path / "n.yaml").read_bytes() == (tmp_path / "m.yaml").read_bytes()


def test_without_hidden_labels_training_images_have_only_labels_of_their_own_task(tmp_path):
    made = stream()
    manifest.write(made, tmp_path / "m.yaml")
    again = manifest.read(tmp_path / "m.yaml", None)
    assert again.fingerprint == made.fingerprint
    assert not again.train.complete and again.truth is None
    for task, rows, mine in zip(made.tasks, again.train.rows, made.train.rows, strict=True):
        assert again.train.labels.take(rows) == made.train.labels.take(mine).within(task.columns)
    assert same(again.test, made.test)
    with pytest.raises(UserError, match="complete training labels of name: #1 are not known"):
        manifest.write(again, tmp_path / "n.yaml", complete=True)
    assert not (tmp_path / "n.yaml").exists()


@pytest.mark.parametrize("complete", [False, True])
def test_known_and_unknown_labels_are_written_and_read(tmp_path, complete):
    made = dataclasses.replace(stream(), labels="known")
    dense = made.train.labels.dense()
    entries = (np.random.default_rng(0).random(dense.shape) < 0.2) & ~dense
    train = dataclasses.replace(made.train, unknown=Unknown.of_entries(Labels.from_dense(entries)))
    made = dataclasses.replace(made, train=train, truth=None)
    manifest.write(made, tmp_path / "m.yaml", complete=complete)
    again = manifest.read(tmp_path / "m.yaml", None)
    assert (again.labels, again.fingerprint, again.train.complete) == ("known", made.fingerprint, complete)
    assert again.unknown_lines() == made.unknown_lines() and again.truth is None
    for task, rows, mine in zip(made.tasks, again.train.rows, made.train.rows, strict=True):
        visible = slice(0, task.end)
        assert again.train.labels.take(rows).within(visible) == made.train.labels.take(mine).within(visible)
    text = (tmp_path / "m.yaml").read_text()
    (tmp_path / "m.yaml").write_text(text.replace("labels: known", "labels: some"))
    with pytest.raises(UserError, match="labels must be task or known, not some"):
        manifest.read(tmp_path / "m.yaml", None)


def test_unknown_labels_of_later_tasks_are_written_and_read(tmp_path):
    pools = [Pool(Names(names), Labels.from_lists([[0], [0, 1]], 2), np.array([0, 1])) for names in ("xy", "zw")]
    made = make_stream(Collection("made", tmp_path, ("a", "b"), *pools, listed=True), ProtocolOptions(), "s")
    assert made.test.unknown.dense().tolist() == [[False, True], [False, False]]
    manifest.write(made, tmp_path / "m.yaml")
    again = manifest.read(tmp_path / "m.yaml", None)
    assert again.fingerprint == made.fingerprint
    for split, other in ((again.train, made.train), (again.test, made.test)):
        assert np.array_equal(split.unknown.dense(), other.unknown.dense())


def test_what_the_file_looks_like(tmp_path):
    names = Names(["x.jpg", "y.jpg", "z.jpg"])
    pool = Pool(names, Labels.from_lists([[0, 1], [1, 2], [2]], 3))
    made = make_stream(Collection("made", tmp_path, ("a", "b", "c"), pool, pool), ProtocolOptions(base=2, step=1), "s")
    manifest.write(made, tmp_path / "m.yaml", complete=True)
    hidden = hashlib.sha256(b"2 y.jpg").hexdigest()
    assert (tmp_path / "m.yaml").read_text() == (
        f"{manifest._HEADER}lifelabel_stream: 1\nname: s\ndataset: ''\nsha256: {made.fingerprint}\n"
        "rules:\n  source: made\n  protocol: disjoint\n  order: source\n  base: 2\n  step: 1\n  seed: 0\n"
        "tasks:\n- [a, b]\n- [c]\n"
        "train:\n- |2\n  0,1 x.jpg\n  1 y.jpg\n- |2\n  2 z.jpg\n"
        "test:\n- |2\n  0,1 x.jpg\n  1,2 y.jpg\n- |2\n  2 z.jpg\n"
        f"hidden_sha256: {hidden}\nhidden: |2\n  2 y.jpg\n"
    )


def test_the_slow_loader_reads_the_same(tmp_path, monkeypatch):
    made = stream(names=ODD)
    manifest.write(made, tmp_path / "m.yaml", complete=True)
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert same(manifest.read(tmp_path / "m.yaml", None).train, made.train)


def test_images_without_a_label_and_tasks_without_a_test_image(tmp_path):
    made = stream(images=12)
    names = Names([*made.test.names, " 7 odd.jpg"])
    bare = Labels(np.append(made.test.labels.start, made.test.labels.start[-1]), made.test.labels.column, 8)
    none = np.array([], np.int64)
    test = dataclasses.replace(made.test, names=names, labels=bare, rows=(np.array([12]), none, np.arange(12), none))
    manifest.write(dataclasses.replace(made, test=test), tmp_path / "m.yaml")
    again = manifest.read(tmp_path / "m.yaml", None).test
    assert again.names[0] == " 7 odd.jpg" and len(again.labels[0]) == 0
    assert [len(rows) for rows in again.rows] == [1, 0, 12, 0]


def test_images_are_found_under_the_root(tmp_path):
    (tmp_path / "train").mkdir()
    made = stream(images=20)
    Image.new("RGB", (8, 8)).save(tmp_path / "train" / Path(made.train.names[3]).name)
    manifest.write(made, tmp_path / "m.yaml")
    assert np.flatnonzero(manifest.read(tmp_path / "m.yaml", tmp_path).train.images.present).tolist() == [3]
    assert not manifest.read(tmp_path / "m.yaml", None).train.images.present.any()
    drawn = dataclasses.replace(made, image_size=64)
    manifest.write(drawn, tmp_path / "d.yaml")
    again = manifest.read(tmp_path / "d.yaml", tmp_path)
    assert again.image_size == 64 and not again.train.images.present.any()


def test_writing_leaves_nothing_half_done(tmp_path):
    made = stream(images=20)
    path = tmp_path / "m.yaml"
    path.write_text("old")
    bad = dataclasses.replace(made, test=dataclasses.replace(made.test, names=Names(["\udcff.jpg"] * len(made.test))))
    with pytest.raises(UserError, match=r"cannot name the image .*udcff.jpg.*: rename the file, in printable UTF-8"):
        manifest.write(bad, path)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["m.yaml"]
    missing = tmp_path / "no" / "m.yaml"
    with pytest.raises(UserError, match=rf"^cannot write {missing}: No such file or directory; choose another folder$"):
        manifest.write(made, missing)
    assert [p.name for p in tmp_path.iterdir()] == ["m.yaml"]


def spoilt(tmp_path, change, **options):
    """A manifest with a change to its YAML, and its checksums left as they are."""
    path = tmp_path / "m.yaml"
    manifest.write(stream(images=20), path, **options)
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    return path


def put(key, line, task=0):
    return lambda values: values[key].__setitem__(task, values[key][task] + line + "\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("train", "0 new.jpg"), "changed by hand or damaged: its content does not match its sha256; get the man"),
        (put("train", "2 x.jpg"), r"train of task 1, line \d+: column 2 of 'x.jpg' is not one of 0 … 1"),
        (put("train", "0 x.jpg", 1), r"train of task 2, line \d+: column 0 of 'x.jpg' is not one of 2 … 3"),
        (put("test", "8 x.jpg"), r"test of task 1, line \d+: column 8 of 'x.jpg' is not one of 0 … 7"),
        (put("train", "0 x.jpg\n1 x.jpg"), r"train of task 1, line \d+: 'x.jpg' is named twice"),
        (put("test", "0 x.jpg\n1 x.jpg"), r"test of task 1, line \d+: 'x.jpg' is named twice"),
        (put("train", "0 ../x.jpg"), r"train names the image '../x.jpg': leads out of its folder"),
        (put("test", "0 /x.jpg"), r"test names the image '/x.jpg': an absolute path"),
        (put("train", "0;1 x.jpg"), r"train of task 1, line \d+: '0;1 x.jpg' is not 'COLUMN,COLUMN,… NAME'"),
        (put("train", "٣ x.jpg"), "is not 'COLUMN"),
        (put("train", "0"), "is not 'COLUMN"),
        (lambda v: v["test"].__setitem__(1, v["test"][0]), "task 2 names .*which an earlier task has too"),
        (lambda v: v["train"].pop(), "train must be a list of 4 blocks of text, one per task"),
        (lambda v: v["train"].__setitem__(0, 7), "train must be a list of 4 blocks of text, one per task"),
        (lambda v: v.pop("test"), "test must be a list of 4 blocks of text, one per task"),
        (lambda v: v.pop("tasks"), "tasks must be a list with the classes of each task"),
        (lambda v: v["tasks"].append([]), "task 5 must be a list of classes"),
        (lambda v: v["tasks"][0].append(True), "task 1 has a class that is not text: True"),
        (lambda v: v["tasks"][3].append("a"), "task 4 names the class 'a' a second time"),
        (lambda v: v.update(rules=3), "rules must be lines 'rule: value', not 3"),
        (lambda v: v.update(rules={"when": datetime.date(2020, 1, 1)}), "rules must be text and numbers"),
        (lambda v: v.update(name=3), "name must be text, not 3"),
        (lambda v: v.update(image_size="big"), "image_size must be a number of pixels"),
        (lambda v: v.update(lifelabel_stream=2), "of version 2, but version 1 is needed: update lifelabel"),
        (lambda v: v.update(lifelabel_stream=True), "of version True, but version 1 is needed: update lifelabel"),
        (lambda v: v.pop("lifelabel_stream"), "is not the manifest of a stream"),
        (lambda v: v["tasks"][0].__setitem__(0, "\x1b[31mred"), "task 1 has a class name with control characters"),
        (lambda v: v.update(name="two\nlines"), "name has control characters"),
    ],
)
def test_malformed_manifests(tmp_path, change, message):
    with pytest.raises(UserError, match=message) as caught:
        manifest.read(spoilt(tmp_path, change), None)
    assert "m.yaml" in str(caught.value) and "\n" not in str(caught.value)


def hide(line):
    def change(values):
        values["hidden"] += line + "\n"
        values["hidden_sha256"] = hashlib.sha256(values["hidden"][:-1].encode()).hexdigest()

    return change


def hide_a_visible_label(values):
    columns, name = values["train"][0].split("\n")[0].split(" ", 1)
    assert columns in ("0", "1")
    values["hidden"] = ""
    hide(f"0,1 {name}")(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(hidden=v["hidden"][:-9]), "damaged: hidden does not match hidden_sha256; get the manifest"),
        (lambda v: v.update(hidden=[]), "hidden must be a block of text"),
        (hide("0 x.jpg"), "hidden names 'x.jpg', which is not a training image"),
        (hide("9 train/000.jpg"), r"hidden, line \d+: column 9"),
        (hide_a_visible_label, "hidden adds labels of task 1 to images of that task"),
    ],
)
def test_malformed_hidden_labels(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        manifest.read(spoilt(tmp_path, change, complete=True), None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, r", line 1, is nested deeper than 20 levels: get the manifest again"),
        ("- " * 200_000, r", line 1, is nested deeper than 20 levels: get the manifest again"),
        ("a: &x [1]\nb: *x\n", r", line 1, has an anchor, an alias or a tag: get the manifest again"),
        ("a: [", r", line \d, is not valid YAML: get the manifest again"),
        ("\x00", r" is not valid YAML: get the manifest again"),
        ("x: 2020-99-99", r" is not valid YAML: get the manifest again"),
    ],
)
def test_files_that_are_not_a_manifest(tmp_path, text, message):
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"m\.yaml{message}$"):
        manifest.read(path, None)


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"cannot read .*m.yaml"):
        manifest.read(tmp_path / "m.yaml", None)
    (tmp_path / "m.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UserError, match=r"m.yaml is not valid YAML: get the manifest again"):
        manifest.read(tmp_path / "m.yaml", None)
    monkeypatch.setattr(manifest, "_MAX_BYTES", 2)
    with pytest.raises(UserError, match="more than 2 bytes"):
        manifest.read(tmp_path / "m.yaml", None)
