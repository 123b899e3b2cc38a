"""Parts of a stream, compared with plain loops over names: nothing that was left out may be reached."""

import dataclasses
import hashlib

import numpy as np
import pytest
from PIL import Image

from lifelabel.errors import HiddenLabel, UserError
from lifelabel.keeper import Keeper
from lifelabel.streams import build
from lifelabel.streams.base import Labels, Names, Split, Stream, cut_classes
from lifelabel.streams.files import FileImages
from lifelabel.streams.parts import Part, first, part_of, reordered, scored_on_training

CLASSES = tuple("abcdefghi")
SIZES = [3, 2, 3, 1]
SCENES = {"train_images": 150, "test_images": 40, "size": 32}


def made(overlap):
    """Sixty training and thirty test images of nine classes in four tasks of different sizes, some of which overlap."""
    rng = np.random.default_rng(1)
    tasks = cut_classes(CLASSES, SIZES)
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
        names = Names(f"{kind}-{i}.jpg" for i in range(count))
        splits.append(Split(FileImages(None, names), names, Labels.of_dense(labels), rows))
    truth = rng.random((9, 9))
    return Stream("made", tasks, *splits, truth)


STREAMS = {
    "disjoint": lambda: made(False),
    "overlap": lambda: made(True),
    "scenes": lambda: build("scenes", SCENES),
}


@pytest.fixture(params=STREAMS)
def stream(request):
    return STREAMS[request.param]()


def known(stream, split):
    """Everything about a split by names: the complete labels of each image, and the images of each task."""
    labels = split.labels.dense()
    shown = {
        name: {c for c, yes in zip(stream.classes, labels[i], strict=True) if yes} for i, name in enumerate(split.names)
    }
    return shown, [[split.names[row] for row in rows.tolist()] for rows in split.rows]


def views(stream):
    """What the tasks of a stream show for training, by names: for each task, each image's visible labels."""
    found = []
    for index, task in enumerate(stream.tasks):
        view = dataclasses.replace(stream, train=there(stream.train)).train_view(index)
        dense = view.labels.dense()
        assert view.task == task
        found.append(
            {
                stream.train.names[row]: {c for c, yes in zip(task.classes, dense[i], strict=True) if yes}
                for i, row in enumerate(view.rows.tolist())
            }
        )
    return found


def there(split):
    """The same with a file for every image, as far as a view asks."""
    return dataclasses.replace(split, images=type("All", (), {"present": np.ones(len(split), bool)})())


def held(name, share):
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 16**8 < share


# The first tasks


def test_first_tasks_have_no_later_class_and_no_later_image(stream):
    part = first(stream, 2)
    assert part.tasks == stream.tasks[:2] and part.classes == stream.classes[: stream.tasks[1].last]
    assert views(part) == views(stream)[:2]
    for kind in ("train", "test"):
        full, by_task = known(stream, getattr(stream, kind))
        cut, of_part = known(part, getattr(part, kind))
        assert of_part == by_task[:2]
        assert cut == {name: labels & set(part.classes) for name, labels in full.items()}
    assert part.train.labels.classes == part.test.labels.classes == len(part.classes)
    assert np.array_equal(part.truth, stream.truth[: len(part.classes), : len(part.classes)])
    joint = dataclasses.replace(part, train=there(part.train)).joint_view()
    assert set(joint.rows.tolist()) == {row for rows in stream.train.rows[:2] for row in rows.tolist()}
    assert joint.task.classes == part.classes


def test_more_tasks_than_there_are(stream):
    with pytest.raises(UserError, match=f"has {len(stream.tasks)} tasks, not 9: lower first_tasks"):
        first(stream, 9)


# Images held out


@pytest.mark.parametrize("tasks", [None, 2])
def test_held_out_images_are_scored_by_what_their_own_tasks_show(stream, tasks):
    share = 0.3
    part = part_of(stream, Part(0, tasks, share))
    full, by_task = known(stream, stream.train)
    expected, kept = {}, []
    for task, names in zip(stream.tasks[:tasks], by_task, strict=False):
        kept.append({name: full[name] & set(task.classes) for name in names if not held(name, share)})
        for name in names:
            if held(name, share):
                expected[name] = expected.get(name, set()) | full[name] & set(task.classes)
    assert views(part) == kept
    scored, of_part = known(part, part.test)
    assert {name: scored[name] for names in of_part for name in names} == expected
    assert expected and not any(labels for name, labels in scored.items() if name not in expected)
    seen = [name for names in of_part for name in names]
    assert len(seen) == len(set(seen))  # each is scored from one task on, the first that has it
    assert all(
        name in by_task[t] and not any(name in by_task[s] for s in range(t))
        for t, ns in enumerate(of_part)
        for name in ns
    )
    assert not set(stream.test.names) & set(scored)
    assert part.truth is None
    for t, names in enumerate(by_task[:tasks]):  # a partition of what the task had
        left, out = set(kept[t]), {name for name in names if name in expected}
        assert left | out == set(names) and not left & out


def test_which_images_are_held_out_follows_from_their_names():
    stream = made(True)
    turn = np.random.default_rng(5).permutation(60)
    place = np.argsort(turn)
    t = stream.train
    other = Split(t.images.take(turn), t.names.take(turn), t.labels.take(turn), tuple(place[rows] for rows in t.rows))
    a, b = scored_on_training(stream, 0.3), scored_on_training(dataclasses.replace(stream, train=other), 0.3)
    assert [set(names) for names in known(a, a.test)[1]] == [set(names) for names in known(b, b.test)[1]]
    assert a.test.used().size < scored_on_training(stream, 0.5).test.used().size
    assert set(a.test.used()) < set(scored_on_training(stream, 0.5).test.used())


@pytest.mark.parametrize(("share", "says"), [(1e-6, "to score: hold out more"), (0.9, "to learn: hold out less")])
def test_a_share_that_leaves_nothing(share, says):
    with pytest.raises(UserError, match=f"leaves no image of task . {says}"):
        scored_on_training(made(False), share)


# Another order


def test_another_order_moves_classes_images_and_labels_together(stream):
    part = reordered(stream, 3)
    turn = [[task.classes for task in stream.tasks].index(task.classes) for task in part.tasks]
    assert sorted(turn) == list(range(len(stream.tasks))) and turn != sorted(turn)
    assert [task.first for task in part.tasks] == np.cumsum([0] + [len(t.classes) for t in part.tasks])[:-1].tolist()
    before = views(stream)
    assert views(part) == [before[t] for t in turn]
    assert known(part, part.train)[0] == known(stream, stream.train)[0]
    full, by_task = known(stream, stream.test)
    assert known(part, part.test)[0] == full
    moved = [sorted(by_task[t]) for t in turn]
    if len(stream.train.used()) < sum(
        map(len, stream.train.rows)
    ):  # overlap: scored with the first class that is known
        moved = [[] for _ in turn]
        for name in sorted(name for names in by_task for name in names):
            moved[min(t for t, task in enumerate(part.tasks) if full[name] & set(task.classes))].append(name)
    assert [sorted(names) for names in known(part, part.test)[1]] == moved
    for i, a in enumerate(part.classes):
        for j, b in enumerate(part.classes):
            assert part.truth[i, j] == stream.truth[stream.classes.index(a), stream.classes.index(b)]


def test_a_test_image_without_a_label_stays_with_its_task():
    stream = made(True)
    labels = stream.test.labels.dense()
    row = int(stream.test.rows[2][0])
    labels[row] = False
    stream = dataclasses.replace(stream, test=dataclasses.replace(stream.test, labels=Labels.of_dense(labels)))
    part = reordered(stream, 3)
    (now,) = [part.tasks[t].classes for t, rows in enumerate(part.test.rows) if row in rows]
    assert now == stream.tasks[2].classes


def test_orders_are_the_same_every_time_and_differ():
    stream = made(False)
    orders = [reordered(stream, k).classes for k in range(1, 9)]
    assert orders == [reordered(stream, k).classes for k in range(1, 9)]
    assert len(set(orders)) > 4


def test_every_part_is_another_stream(stream):
    parts = [Part(), Part(3), Part(4), Part(0, 2), Part(0, 3), Part(0, None, 0.3), Part(0, None, 0.4), Part(3, 2, 0.3)]
    marks = [part_of(stream, part).fingerprint for part in parts]
    assert len(set(marks)) == len(parts)
    assert marks == [part_of(stream, part).fingerprint for part in parts]
    assert part_of(stream, Part()) is stream
    assert part_of(stream, parts[-1]).rules | stream.rules == {
        **stream.rules,
        "task_order": 3,
        "first_tasks": 2,
        "hold_out": 0.3,
    }


# Through the keeper


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
    options = {"file": str(tmp_path / "t.csv"), "tasks": 3, "order": "source", "protocol": "overlap"}
    return "table", options


def test_the_keeper_gives_out_the_part_alone(source):
    part = Part(1, 2, 0.3)
    expected = part_of(build(*source), part)
    shown, by_task = known(expected, expected.test)
    keeper = Keeper(*source, part=part)
    try:
        o = keeper.outline
        assert (o.tasks, o.fingerprint, o.has_truth) == (expected.tasks, expected.fingerprint, False)
        names = [o.test.name(row) for row in o.test_rows.tolist()]
        assert sorted(names) == sorted(name for names in by_task for name in names)
        keeper.begin(0)
        for index, task in enumerate(expected.tasks):
            view = keeper.view(index)
            dense = view.labels.dense()
            assert views(expected)[index] == {
                o.train.name(row): {c for c, yes in zip(task.classes, dense[i], strict=True) if yes}
                for i, row in enumerate(view.rows.tolist())
            }
            with pytest.raises(HiddenLabel, match="test labels are hidden until the last task"):
                keeper.test_labels(o.test_rows)
            nothing = np.zeros((len(names), expected.tasks[0].last), np.float32)
            if index + 1 < len(expected.tasks):
                with pytest.raises(HiddenLabel, match="scored again after the last task"):
                    keeper.earlier(0, o.test_rows, nothing)
            else:  # figures of test labels come once, when nothing can be learned any more
                assert keeper.earlier(0, o.test_rows, nothing) is None
                for again in (0, index):
                    with pytest.raises(HiddenLabel, match="each earlier task's are, once"):
                        keeper.earlier(again, o.test_rows, nothing)
            scores = np.zeros((len(names), task.last), np.float32)
            keeper.judge(index + 1, o.test_rows, scores, None, [len(t.classes) for t in expected.tasks])
        assert keeper.truth() is None
        labels, task_of = keeper.test_labels(o.test_rows)
        for row, name in enumerate(names):
            assert {c for c, yes in zip(o.classes, labels[row], strict=True) if yes} == shown[name]
            assert name in by_task[task_of[row]]
    finally:
        keeper.close()


def test_the_upper_bound_learns_kept_images_of_the_part_alone(source):
    part = Part(0, 2, 0.3)
    expected = part_of(build(*source), part)
    keeper = Keeper(*source, joint=True, part=part)
    try:
        keeper.begin(0)
        view = keeper.joint_view()
        names = {keeper.outline.train.name(row) for row in view.rows.tolist()}
        assert names == {name for of_task in views(expected) for name in of_task}
        assert not names & {keeper.outline.test.name(row) for row in keeper.outline.test_rows.tolist()}
        assert view.task.classes == expected.classes and view.labels.classes == len(expected.classes)
    finally:
        keeper.close()


def test_a_part_that_cannot_be_is_one_line():
    with pytest.raises(UserError, match=r"^stream scenes has 5 tasks, not 6"):
        Keeper("scenes", SCENES, part=Part(0, 6))
