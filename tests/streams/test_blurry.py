"""Blurry tasks, compared with plain loops over names: which images move, and which labels they show."""

import dataclasses
import hashlib
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from support.data_sets import write

import lifelabel
from lifelabel.engine.task_loaders import task_loaders
from lifelabel.errors import UserError
from lifelabel.streams import Names, Split, Stream, build, manifest
from lifelabel.streams.blurry import blur
from lifelabel.streams.labels import Labels, Unknown
from lifelabel.streams.stream import classes_to_tasks
from lifelabel.streams.subsets import Part, part_of, sort_by_name

CLASSES = tuple("abcdefghi")
SHARE, SEED = 0.3, 7


def made(complete=True, labels="task", unknown=False, rules=None):
    """Ninety images of nine classes, in four tasks of different sizes. They are listed task by task."""
    rng = np.random.default_rng(3)
    tasks = classes_to_tasks(CLASSES, [3, 2, 3, 1])
    dense = rng.random((90, 9)) < 0.3
    home = np.sort(rng.integers(0, 4, 90))
    for row, task in enumerate(home):
        dense[row, tasks[task].offset] = True
    if not complete:  # the source states the labels of an image's own task only, or of those up to it
        for row, task in enumerate(home):
            first = 0 if labels == "known" else tasks[task].offset
            dense[row, :first] = dense[row, tasks[task].end :] = False
    not_known = Unknown.of_entries(Labels.from_dense((rng.random((90, 9)) < 0.2) & ~dense)) if unknown else None
    rows = tuple(np.flatnonzero(home == task) for task in range(4))
    names, images = Names(f"{rng.integers(10**9)}.jpg" for _ in range(90)), SimpleNamespace(present=np.ones(90, bool))
    split = Split(images, names, Labels.from_dense(dense), rows, complete, not_known)
    return Stream("made", tasks, split, split.without_images(), labels=labels, rules=rules or {"protocol": "disjoint"})


def draw(name, what):
    digest = hashlib.blake2b(f"{SEED} blurry {what}\n{name}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def places(stream):
    """The task in which each image comes."""
    return {stream.train.names[row]: task for task, rows in enumerate(stream.train.rows) for row in rows}


def views(stream):
    """For each task, the known labels of each image by class; unknown ones must be 0."""
    found = []
    for index in range(len(stream.tasks)):
        view = stream.train_view(index)
        dense, known = view.labels.dense(), view.known(np.arange(len(view)))
        known = np.ones_like(dense) if known is None else known
        assert not (dense & ~known).any()
        found.append({
            stream.train.names[row]: {c: bool(y) for c, y, k in zip(view.classes, dense[i], known[i], strict=True) if k}
            for i, row in enumerate(view.rows)
        })  # fmt: skip
    return found


def by_loops(stream):
    """The slow version: the task of each image, and the labels that it shows there."""
    home, now = places(stream), {}
    for task in range(4):
        own = sorted((name for name in home if home[name] == task), key=lambda name: draw(name, "image"))
        moved, others = int(SHARE * len(own) + 0.5), [other for other in range(4) if other != task]
        for position, name in enumerate(own):
            now[name] = others[draw(name, "task") % 3] if position < moved else task
    shown = [{} for _ in stream.tasks]
    not_known = np.zeros((90, 9), bool) if stream.train.unknown is None else stream.train.unknown.dense()
    dense = stream.train.labels.dense()
    for row, name in enumerate(stream.train.names):
        task = now[name]
        own, here = stream.tasks[home[name]], stream.tasks[task]
        visible = range(0 if stream.labels == "known" else here.offset, here.end)
        stated = range(9) if stream.train.complete else range(0 if stream.labels == "known" else own.offset, own.end)
        columns = {*visible, *(range(own.offset, own.end) if own.index < task else ())} & {*stated}
        shown[task][name] = {CLASSES[c]: bool(dense[row, c]) for c in sorted(columns) if not not_known[row, c]}
    return now, shown


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("labels", ["task", "known"])
@pytest.mark.parametrize("complete", [True, False])
def test_a_blurred_stream_by_loops(complete, labels, unknown):
    stream = made(complete, labels, unknown)
    blurred = blur(stream, SHARE, SEED)
    now, shown = by_loops(stream)
    assert places(blurred) == now
    assert views(blurred) == shown
    assert views(sort_by_name(blurred)) == shown
    for task in blurred.tasks:  # lines of a manifest, and what a search may score, show the same
        rows = blurred.train.rows[task.index]
        visible = blurred.shown(task, rows, blurred.train.labels.take(rows))
        for row, columns in zip(rows, visible, strict=True):
            labels_here = shown[task.index][blurred.train.names[row]]
            assert {CLASSES[c] for c in columns} == {c for c, yes in labels_here.items() if yes}


def test_another_seed_or_share_moves_other_images_and_each_task_keeps_some():
    stream = made()
    now = places(blur(stream, SHARE, SEED))
    assert places(blur(stream, SHARE, 8)) != now and places(blur(stream, 0.9, SEED)) != now
    assert all(len(rows) for rows in blur(stream, 0.9, SEED).train.rows)


@pytest.mark.parametrize("complete", [True, False])
def test_a_view_does_not_depend_on_what_is_hidden(complete):
    """Other hidden labels, and other later tasks of the images, give the same bytes."""
    blurred = blur(made(complete, unknown=True), SHARE, SEED)
    split, rng = blurred.train, np.random.default_rng(0)
    task_of = np.repeat(np.arange(4), [3, 2, 3, 1])
    for index, rows in enumerate(split.rows):
        dense, home = split.labels.dense(), split.home.copy()
        for row in rows:
            known = {index, *([home[row]] if home[row] < index else [])}
            hidden = ~np.isin(task_of, list(known))
            dense[row, hidden] = rng.random(hidden.sum()) < 0.5
            if home[row] > index:
                home[row] = rng.integers(index + 1, 4)
        other = dataclasses.replace(split, labels=Labels.from_dense(dense), home=home)
        found = dataclasses.replace(blurred, train=other).train_view(index)
        assert pickle.dumps(found) == pickle.dumps(blurred.train_view(index)), index


def test_a_later_task_of_an_image_is_in_no_array_of_its_view():
    """Also if the source states the task of each image, and labels of later classes are unknown."""
    stream = made()
    tasks = blur(stream, SHARE, SEED).train.home, np.repeat(np.arange(4), [3, 2, 3, 1])
    later = Unknown(Labels.from_lists([()] * 90, 9), np.zeros(9, bool), tasks)
    blurred = blur(dataclasses.replace(stream, train=dataclasses.replace(stream.train, unknown=later)), SHARE, SEED)
    for index in range(4):
        view = blurred.train_view(index)
        if view.tasks is not None:
            assert view.tasks[0].max() <= index + 1
        if view.unknown is not None and view.unknown.tasks is not None:
            assert view.unknown.tasks[0].max() <= index


# The parts of a stream


def test_another_order_of_tasks_moves_the_images_with_their_tasks():
    blurred = blur(made(), SHARE, SEED)
    part = part_of(blurred, Part(task_order=2))
    index = {task.classes: task.index for task in part.tasks}
    assert places(part) == {name: index[blurred.tasks[t].classes] for name, t in places(blurred).items()}
    full = {n: {CLASSES[c] for c in blurred.train.labels[row]} for row, n in enumerate(blurred.train.names)}
    home = places(made())
    for task, found in zip(part.tasks, views(part), strict=True):
        for name, labels in found.items():
            own = blurred.tasks[home[name]].classes
            known = {*task.classes, *(own if index[own] < task.index else ())}
            assert labels == {c: c in full[name] for c in labels} and set(labels) == known


def test_the_first_tasks_keep_the_images_that_come_in_them():
    blurred = blur(made(), SHARE, SEED)
    part = part_of(blurred, Part(first_tasks=2))
    assert views(part) == views(blurred)[:2]
    partly = blur(made(complete=False), SHARE, SEED)
    assert views(part_of(partly, Part(first_tasks=2))) == views(partly)[:2]
    joint = part_of(partly, Part(first_tasks=2)).joint_view()
    home = places(made())
    for row, known in zip(joint.rows, joint.known(np.arange(len(joint))), strict=True):
        own = partly.tasks[home[partly.train.names[row]]]
        assert {c for c, yes in zip(joint.classes, known, strict=True) if yes} == {*own.classes} & {*joint.classes}


def test_images_of_other_tasks_are_not_held_out():
    blurred = blur(made(), SHARE, SEED)
    part = part_of(blurred, Part(hold_out=0.5))
    home, now = places(made()), places(blurred)
    held = {part.test.names[row] for rows in part.test.rows for row in rows}
    assert held and all(home[name] == now[name] for name in held)
    assert sum(map(len, part.train.rows)) + len(held) == 90


# The option of sources


def test_the_option_of_a_stream_and_its_fingerprint(tmp_path):
    small = {"train_images": 80, "test_images": 20, "size": 32}
    plain, none = build("scenes", small), build("scenes", {**small, "blurry": 0.0})
    assert plain.fingerprint == none.fingerprint and plain.rules == none.rules and none.train.home is None
    given = [{**small, "blurry": share, "seed": seed} for share, seed in ((0.1, 0), (0.2, 0), (0.1, 1))]
    blurred = [build("scenes", options) for options in given]
    assert len({stream.fingerprint for stream in (plain, *blurred)}) == 4
    assert blurred[0].rules["blurry"] == 0.1 and blurred[0].proxy().train.home is not None
    assert blurred[0].joint_view().labels == plain.joint_view().labels
    with pytest.raises(UserError, match=r"with the hidden labels .*--set stream.blurry=0.1 --set stream.seed=0$"):
        manifest.write(blurred[0], tmp_path / "m.yaml")


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["image,split,a,b,c,d"]
    for i, row in enumerate(rng.random((60, 4)) < 0.4):
        Image.new("RGB", (8, 8), (4 * i, 0, 0)).save(tmp_path / f"{i:02}.png")
        lines.append(f"{i:02}.png,{'train' if i % 3 else 'test'}," + ",".join(map(str, row.astype(int))))
    (tmp_path / "t.csv").write_text("\n".join(lines))
    return {"order": "source", "tasks": 2, "labels": "task"}, tmp_path / "t.csv"


def test_a_manifest_and_a_published_split_have_the_option(table, tmp_path):
    options, path = table
    manifest.write(build(str(path), options), tmp_path / "m.yaml", complete=True)
    root = {"root": str(tmp_path)}
    expected = build(str(path), {**options, "blurry": 0.25, "seed": 0})
    again = build(str(tmp_path / "m.yaml"), {**root, "blurry": 0.25})
    assert again.fingerprint == expected.fingerprint != build(str(tmp_path / "m.yaml"), root).fingerprint
    for task, test in enumerate(("1,0", "0,0,1,0")):
        write(tmp_path / f"split/task{task}/train.csv", "\n".join(f"{i:02}.png,1,0" for i in range(task, 40, 2)))
        write(tmp_path / f"split/task{task}/test.csv", "\n".join(f"{i:02}.png,{test}" for i in range(50, 60)))
    split = build(str(tmp_path / "split"), {**root, "blurry": 0.25})
    assert not split.train.complete and split.train.home is not None and len(split.train.rows[0]) != 0
    (later,) = {tuple(sorted(x)) for x in views(split)[1].values() if len(x) == 2} - {("class 3", "class 4")}
    assert later == ("class 1", "class 2")  # known labels of an old task, and nothing of the new one


def test_streams_that_cannot_be_blurred():
    stream, several = made(), r"^stream.blurry=0.3: images of made belong to several tasks already"
    twice = (*stream.train.rows[:3], np.append(stream.train.rows[3], 0))
    for other, line in (
        (made(rules={"protocol": "overlap"}), several),
        (dataclasses.replace(stream, train=dataclasses.replace(stream.train, rows=twice)), several),
        (dataclasses.replace(stream, learned=3), r"^stream.blurry=0.3: made has one task only; give more tasks"),
    ):
        with pytest.raises(UserError, match=line):
            blur(other, SHARE, SEED)


def test_a_run_and_a_loop_of_your_own_on_blurry_tasks(table, tmp_path):
    options, path = table
    given = {**options, "blurry": 0.3}
    shared = {"backbone": "tiny", "weights": "none", "image_size": 32, "batch_size": 4, "device": "cpu"}
    done = lifelabel.train(tmp_path / "run", stream=str(path), stream_options=given, method="lwf", **shared)
    assert done.metrics["finished"] and "blurry=0.3" in done.environment["label"]
    shapes = [{known.shape[1] for _, _, known in data.train} for data in task_loaders(str(path), 4, **given)]
    assert shapes == [{2}, {4}]
    *_, last = task_loaders(str(path), 100, **given)
    ((_, labels, known),) = last.train
    assert 0 < known[:, :2].all(1).sum() < len(known) and known[:, 2:].all() and not labels[~known].any()


def test_a_view_has_the_classes_of_its_task_or_all_so_far():
    """Also if no image of the first task comes in it: methods take its first columns for those of all old classes."""
    found = set()
    for seed in range(8):
        stream = blur(made(), 0.03, seed)
        for task in stream.tasks:
            view = stream.train_view(task.index)
            homes = stream.train.home[view.rows]
            earlier, later = bool((homes < task.index).any()), bool((homes > task.index).any())
            assert view.classes == (CLASSES[: task.end] if earlier else task.classes)
            assert earlier == (view.tasks is not None) == (view.known(np.arange(3)) is not None)
            found.add((earlier, later, 0 in homes))
    assert {(True, False, False), (True, False, True), (False, True, False)} <= found
