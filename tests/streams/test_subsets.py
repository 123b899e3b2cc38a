"""Parts of a stream, compared with plain loops over names: no image and no label outside the part is in it."""

import dataclasses
import hashlib

import numpy as np
import pytest
from PIL import Image

from lifelabel.engine.label_server import LabelServer
from lifelabel.errors import HiddenLabel, UserError
from lifelabel.images.photographs import FileImages
from lifelabel.images.source import Names
from lifelabel.streams import build
from lifelabel.streams.labels import Labels
from lifelabel.streams.stream import Split, Stream, classes_to_tasks, equal_tasks
from lifelabel.streams.subsets import Part, part_of, sort_by_name

CLASSES = tuple("abcdefghi")
SIZES = [3, 2, 3, 1]
SCENES = {"train_images": 150, "test_images": 40, "size": 32}


def made(overlap):
    """Sixty training and thirty test images of nine classes in four tasks of different sizes, some of which overlap."""
    rng = np.random.default_rng(1)
    tasks = classes_to_tasks(CLASSES, SIZES)
    splits = []
    for kind, count in (("train", 60), ("test", 30)):
        labels = rng.random((count, 9)) < 0.35
        labels[~labels.any(1), 0] = True
        own = [[t.index for t in tasks if row[t.columns].any()] for row in labels]
        if not overlap:
            own = [[rng.choice(some)] for some in own]
        elif kind == "test":
            own = [some[:1] for some in own]
        rows = tuple(np.array([i for i, some in enumerate(own) if t in some], np.int64) for t in range(4))
        images = FileImages(None, Names(f"{kind}-{i}.jpg" for i in range(count)))
        images.present = np.ones(count, bool)
        splits.append(Split(images, images.names, Labels.from_dense(labels), rows))
    return Stream("made", tasks, *splits, truth=rng.random((9, 9)))


@pytest.fixture(params=["disjoint", "overlap", "scenes"])
def stream(request):
    return build("scenes", SCENES) if request.param == "scenes" else made(request.param == "overlap")


def by_name(names, classes, labels):
    """The classes of each image."""
    return {name: {classes[column] for column in row} for name, row in zip(names, labels, strict=True)}


def known(stream, split):
    """Everything about a split by names: the complete labels of each image, and the images of each task."""
    by_task = [[split.names[row] for row in rows.tolist()] for rows in split.rows]
    return by_name(split.names, stream.classes, split.labels), by_task


def views(stream):
    """The training views of a stream by names: for each task, the visible labels of each image."""
    found = [stream.train_view(task.index) for task in stream.tasks]
    assert tuple(view.task for view in found) == stream.tasks
    return [by_name(stream.train.names.take(view.rows), view.classes, view.labels) for view in found]


def held(name, share):
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 16**8 < share


# First tasks


def test_first_tasks_have_no_later_class_and_no_later_image(stream):
    part = part_of(stream, Part(first_tasks=2))
    assert part.tasks == stream.tasks[:2] and part.classes == stream.classes[: stream.tasks[1].end]
    assert views(part) == views(stream)[:2]
    for kind in ("train", "test"):
        full, by_task = known(stream, getattr(stream, kind))
        cut, of_part = known(part, getattr(part, kind))
        assert of_part == by_task[:2]
        assert cut == {name: labels & set(part.classes) for name, labels in full.items()}
    assert np.array_equal(part.truth, stream.truth[: len(part.classes), : len(part.classes)])
    joint = part.joint_view()
    assert set(joint.rows.tolist()) == {row for rows in stream.train.rows[:2] for row in rows.tolist()}
    assert joint.task.classes == part.classes


# Images held out


@pytest.mark.parametrize("tasks", [None, 2])
def test_held_out_images_have_the_visible_labels_of_their_tasks(stream, tasks):
    share = 0.3
    part = part_of(stream, Part(0, tasks, share))
    full, by_task = known(stream, stream.train)
    expected, kept, first_task = {}, [], {}  # an image of several tasks is scored from the first of them on
    for task, names in zip(stream.tasks[:tasks], by_task, strict=False):
        kept.append({name: full[name] & set(task.classes) for name in names if not held(name, share)})
        for name in names:
            if held(name, share):
                expected[name] = expected.get(name, set()) | full[name] & set(task.classes)
                first_task.setdefault(name, task.index)
    assert expected and views(part) == kept
    scored, of_part = known(part, part.test)
    assert {name: index for index, names in enumerate(of_part) for name in names} == first_task
    assert scored == {name: expected.get(name, set()) for name in scored}
    assert not set(stream.test.names) & set(scored) and part.truth is None


# Another order of the tasks


def test_another_order_moves_classes_images_and_labels_together(stream):
    part = part_of(stream, Part(task_order=3))
    turn = [[task.classes for task in stream.tasks].index(task.classes) for task in part.tasks]
    assert sorted(turn) == list(range(len(stream.tasks))) and turn != sorted(turn)
    assert [task.offset for task in part.tasks] == np.cumsum([0] + [len(t.classes) for t in part.tasks])[:-1].tolist()
    before = views(stream)
    assert views(part) == [before[t] for t in turn]
    assert known(part, part.train)[0] == known(stream, stream.train)[0]
    full, by_task = known(stream, stream.test)
    assert known(part, part.test)[0] == full
    moved = [sorted(by_task[t]) for t in turn]
    if len(stream.train.used()) < sum(map(len, stream.train.rows)):  # overlap: scored from the first known class on
        moved = [[] for _ in turn]
        for name in sorted(name for names in by_task for name in names):
            moved[min(t for t, task in enumerate(part.tasks) if full[name] & set(task.classes))].append(name)
    assert [sorted(names) for names in known(part, part.test)[1]] == moved
    assert_same_truth(part, stream)


def assert_same_truth(part, stream):
    columns = [stream.classes.index(name) for name in part.classes]
    assert np.array_equal(part.truth, [[stream.truth[i, j] for j in columns] for i in columns])


def test_a_test_image_without_a_label_stays_with_its_task():
    stream = made(True)
    labels = stream.test.labels.dense()
    row = int(stream.test.rows[2][0])
    labels[row] = False
    stream = dataclasses.replace(stream, test=dataclasses.replace(stream.test, labels=Labels.from_dense(labels)))
    part = part_of(stream, Part(task_order=3))
    (now,) = [part.tasks[t].classes for t, rows in enumerate(part.test.rows) if row in rows]
    assert now == stream.tasks[2].classes


def test_all_orders_are_different_and_the_same_every_time():
    stream = part_of(made(False), Part(first_tasks=3))
    orders = [part_of(stream, Part(task_order=k)).classes for k in range(1, 6)]
    assert orders == [part_of(stream, Part(task_order=k)).classes for k in range(1, 6)]
    assert len({*orders, stream.classes}) == 6
    with pytest.raises(UserError, match=r"^task_order 6 does not exist: 3 tasks have 5 other orders; lower it$"):
        part_of(stream, Part(task_order=6))


def test_every_part_is_another_stream(stream):
    parts = [Part(), Part(3), Part(4), Part(0, 2), Part(0, 3), Part(0, None, 0.3), Part(0, None, 0.4), Part(3, 2, 0.3)]
    marks = [part_of(stream, part).fingerprint for part in parts]
    assert len(set(marks)) == len(parts)
    assert part_of(stream, Part()) is stream
    rules = {"task_order": 3, "first_tasks": 2, "hold_out": 0.3}
    assert part_of(stream, parts[-1]).rules | stream.rules == {**stream.rules, **rules}


@pytest.mark.parametrize(
    ("part", "line"),
    [
        (Part(first_tasks=9), r"^stream made has 4 tasks, not 9: lower first_tasks$"),
        (Part(hold_out=1e-6), r"leaves no image of task . to score: hold out more"),
        (Part(hold_out=0.9), r"leaves no image of task . to learn: hold out less"),
    ],
)
def test_a_part_that_does_not_exist(part, line):
    with pytest.raises(UserError, match=line):
        part_of(made(False), part)


# Through the label server


@pytest.fixture(params=["scenes", "photographs"])
def source(request, tmp_path):
    """The name and options of a stream, as a run names it."""
    if request.param == "scenes":
        return "scenes", SCENES
    rng = np.random.default_rng(0)
    lines = ["image,split,a,b,c,d,e,f"]
    for i in rng.permutation(90):
        Image.new("RGB", (8, 8), (2 * i, 0, 0)).save(tmp_path / f"{i}.png")
        shown = (rng.random(6) < 0.4).astype(int)
        lines.append(f"{i}.png,{'train' if i % 3 else 'test'}," + ",".join(map(str, shown)))
    (tmp_path / "t.csv").write_text("\n".join(lines))
    return "table", {"file": str(tmp_path / "t.csv"), "tasks": 3, "order": "source", "protocol": "overlap"}


def test_the_label_server_returns_only_the_part(source):
    part = Part(1, 2, 0.3)
    expected = part_of(build(*source), part)
    shown, by_task = known(expected, expected.test)
    label_server = LabelServer(*source, part=part)
    try:
        o = label_server.info
        assert (o.tasks, o.fingerprint, o.has_truth) == (expected.tasks, expected.fingerprint, False)
        names = [o.test.name(row) for row in o.test_rows.tolist()]
        assert sorted(names) == sorted(name for names in by_task for name in names)
        label_server.begin(0)
        for index, task in enumerate(expected.tasks):
            view = label_server.view(index)
            assert views(expected)[index] == by_name(map(o.train.name, view.rows.tolist()), view.classes, view.labels)
            with pytest.raises(HiddenLabel, match="test labels are hidden until the last task"):
                label_server.test_labels(o.test_rows)
            if task is expected.tasks[-1]:
                nothing = np.zeros((len(names), expected.tasks[0].end), np.float32)
                label_server.submit_earlier(0, o.test_rows, nothing)
            scores = np.zeros((len(names), task.end), np.float32)
            label_server.judge(index + 1, o.test_rows, scores, None)
        assert label_server.truth() is None
        labels, is_known, task_of = label_server.test_labels(o.test_rows)
        assert is_known.all() and all(name in by_task[task] for name, task in zip(names, task_of, strict=True))
        assert by_name(names, o.classes, Labels.from_dense(labels)) == {name: shown[name] for name in names}
    finally:
        label_server.close()


def test_the_upper_bound_trains_only_on_images_of_the_part(source):
    part = Part(0, 2, 0.3)
    expected = part_of(build(*source), part)
    label_server = LabelServer(*source, joint=True, part=part)
    try:
        label_server.begin(0)
        view = label_server.joint_view()
        names = {label_server.info.train.name(row) for row in view.rows.tolist()}
        assert names == {name for of_task in views(expected) for name in of_task}
        assert not names & {label_server.info.test.name(row) for row in label_server.info.test_rows.tolist()}
        assert view.task.classes == expected.classes and view.labels.classes == len(expected.classes)
    finally:
        label_server.close()


def test_photographs_are_sorted_by_name():
    """The order of a source would reveal the task of an image."""
    names, labels = Names(["b.png", "c.png", "a.png"]), Labels.from_lists([[0], [1], [0, 1]], 2)
    split = Split(FileImages(None, names), names, labels, (np.array([0, 2]), np.array([1])))
    stream = sort_by_name(Stream("s", equal_tasks(("x", "y"), 2), split, split))
    for part in (stream.train, stream.test):
        assert list(part.names) == [part.images.name(row) for row in range(3)] == ["a.png", "b.png", "c.png"]
        assert [part.labels[row].tolist() for row in range(3)] == [[0, 1], [0], [1]]
        assert [rows.tolist() for rows in part.rows] == [[1, 0], [2]]  # the same images, in the same order


# Another order of the classes


def overlapping(**more):
    return dataclasses.replace(made(True), **{"rules": {"protocol": "overlap"}, **more})


def test_a_class_order_makes_the_tasks_anew_from_the_labels_of_each_image():
    stream = overlapping()
    part = part_of(stream, Part(class_order=2))
    assert sorted(part.classes) == list(CLASSES) != list(part.classes)
    assert [len(task.classes) for task in part.tasks] == SIZES
    assert part.fingerprint != stream.fingerprint and part.rules["class_order"] == 2
    for kind in ("train", "test"):
        full, _ = known(stream, getattr(stream, kind))
        shown, by_task = known(part, getattr(part, kind))
        assert shown == full
        for index, task in enumerate(part.tasks):
            own = {name for name, labels in full.items() if labels & set(task.classes)}
            before = {name for names in by_task[:index] for name in names}
            assert set(by_task[index]) == (own if kind == "train" else own - before)
            assert len(by_task[index]) == len(set(by_task[index]))
    assert_same_truth(part, stream)


def test_a_class_order_is_applied_before_a_task_order():
    by_class = part_of(overlapping(), Part(class_order=1))
    both = part_of(overlapping(), Part(class_order=1, task_order=1))
    assert both.fingerprint == part_of(by_class, Part(task_order=1)).fingerprint != by_class.fingerprint


@pytest.mark.parametrize(
    ("stream", "part", "line"),
    [
        (made(False), Part(class_order=1), r"^class_order 1: made has each image in one task, .* give task_order"),
        (overlapping(rules={"protocol": "overlap", "tasks": "given by the source"}), Part(class_order=1), r"^class_or"),
        (overlapping(), Part(class_order=10**6), r"^class_order 1000000 does not exist: 9 classes have 362879 other"),
        (overlapping(), Part(class_order=1, proxy=True), r"^class_order has no effect on a proxy stream"),
        (
            overlapping(train=dataclasses.replace(made(True).train, complete=False)), Part(class_order=1),
            r"^class_order 1 needs the labels of all classes of made, which are not known$",
        ),
    ],
)  # fmt: skip
def test_a_class_order_that_does_not_exist(stream, part, line):
    with pytest.raises(UserError, match=line):
        part_of(stream, part)


def test_the_labels_of_a_task_are_known_in_every_task_order(tmp_path):
    """A table with tasks that lists names: the labels of later classes are unknown, those of its own task never."""
    names = {1: "ab", 2: "cd", 3: "ef"}
    images = {f"{task}-{name}.jpg": (name, task) for task in names for name in names[task]}
    rows = [f"{image},{name},{task},train" for image, (name, task) in images.items()]
    rows += [f"t-{name}.jpg,{name},3,test" for name in "abcdef"]
    (tmp_path / "t.csv").write_text("\n".join(["image,labels,task,split", *rows]) + "\n")
    for image in images:
        (tmp_path / image).touch()
    stream = build(str(tmp_path / "t.csv"), {})
    assert stream.train.unknown.tasks is not None
    for order in range(4):
        reordered = part_of(stream, Part(task_order=order))
        for task in reordered.tasks:
            view = reordered.train_view(task.index)
            known = view.known(np.arange(len(view)))
            assert len(view) == 2 and (known is None or known[:, -len(task.classes) :].all())
