"""Proxy streams: as many tasks as the stream, none of its classes, none of its test images, and the right labels."""

import dataclasses
import pickle

import numpy as np
import pytest
from support.data_sets import write_instances

from lifelabel.engine.label_server import LabelServer
from lifelabel.errors import UserError
from lifelabel.images.source import Names
from lifelabel.streams import build, manifest, paper, published
from lifelabel.streams.collection import Collection, Pool
from lifelabel.streams.labels import Labels
from lifelabel.streams.protocols import ProtocolOptions, make_stream
from lifelabel.streams.stream import proxy_sizes
from lifelabel.streams.subsets import Part, part_of

COCO = [name for task in paper.SPLIT_COCO for name in task]
OTHERS = [f"other {number:02}" for number in range(43)]
CATEGORIES = tuple(sorted([*COCO, *OTHERS]))
SCENES = {"train_images": 400, "test_images": 40, "size": 32}
PROXY = Part(hold_out=0.3, proxy=True)


def shown(stream, split):
    """The class names of each image, by image name."""
    return {name: {stream.classes[c] for c in split.labels[row]} for row, name in enumerate(split.names)}


def by_task(split):
    return [{split.names[row] for row in rows.tolist()} for rows in split.rows]


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    """A small Split-COCO and the annotations of all its images: (root, labels of each image by category)."""
    root, rng = tmp_path_factory.mktemp("coco"), np.random.default_rng(0)
    chance = np.array([0.02 if name.startswith("other") else 0.05 for name in CATEGORIES])
    names = [f"COCO_train2014_{number:012}.jpg" for number in rng.permutation(900)]
    labels = {name: {CATEGORIES[c] for c in np.flatnonzero(rng.random(len(CATEGORIES)) < chance)} for name in names}
    rare = {"other 07", "other 19", "other 33"}
    labels = {name: some - rare for name, some in labels.items()}
    labels[names[0]] = {"person", *rare}  # so rare that the proxy stream has no room for them
    for t in range(10):
        train = [*names[60 * t : 60 * t + 60], names[600 + 30 * t]]  # the last one is a test image too
        folder = root / "Split-COCO" / f"task{t}"
        folder.mkdir(parents=True)
        for kind, some, first in (("train", train, 4 * t), ("test", names[600 : 630 + 30 * t], 0)):
            rows = (",".join([n, *(str(int(c in labels[n])) for c in COCO[first : 4 * t + 4])]) for n in some)
            (folder / f"{kind}.csv").write_text("\n".join(rows))
    for part, some in (("train2014", names[:600]), ("val2014", names[600:])):
        write_instances(root, part, CATEGORIES, {name: labels[name] for name in some})
    return root, labels


def test_sizes_of_tasks():
    assert proxy_sizes("s", [4] * 10, 40) == [4] * 10
    assert proxy_sizes("s", [4] * 10, 43) == [4] * 10
    assert proxy_sizes("s", [4] * 10, 25) == [3] * 5 + [2] * 5
    assert proxy_sizes("s", [40, 10, 1], 30) == [19, 10, 1]
    assert proxy_sizes("s", [2, 2], 2) == [1, 1]
    assert proxy_sizes("s", [3, 1, 5, 2], 9) == [3, 1, 3, 2]


def test_the_published_split_with_the_annotations_of_coco(coco):
    root, labels = coco
    target = published.read(root / "Split-COCO", root)
    proxy = target.proxy()
    assert (proxy.name, proxy.dataset) == ("split-coco-proxy", "coco")
    assert [len(task.classes) for task in proxy.tasks] == [4] * 10
    # the rarest are left out, and the others keep the order of COCO
    assert list(proxy.classes) == [name for name in OTHERS if name not in ("other 07", "other 19", "other 33")]
    allowed = set(target.train.names) - set(target.test.names)
    assert len(allowed) == 600
    expected = {name: labels[name] & set(proxy.classes) for name in allowed}
    assert shown(proxy, proxy.train) == {name: some for name, some in expected.items() if some}
    tasks = by_task(proxy.train)
    assert sum(map(len, tasks)) == len(set().union(*tasks)) == len(proxy.train)  # each image in one task
    for task, names in zip(proxy.tasks, tasks, strict=True):
        assert all(expected[name] & set(task.classes) for name in names)
    assert max(map(len, tasks)) - min(map(len, tasks)) <= 2
    assert proxy.train.complete and not len(proxy.test.used())
    assert proxy.fingerprint == published.read(root / "Split-COCO", root).proxy().fingerprint


def test_a_protocol_and_a_manifest_have_the_same_rules(coco):
    root, _ = coco
    target = build("split-coco", {"root": str(root)})
    proxy = target.proxy()
    assert not set(proxy.classes) & set(target.classes) and len(proxy.tasks) == 10
    assert set(proxy.train.names) <= set(target.train.names) - set(target.test.names)
    split = published.read(root / "Split-COCO", root)
    manifest.write(split, root / "s.yaml")
    assert manifest.read(root / "s.yaml", root).proxy().fingerprint == split.proxy().fingerprint
    for without in (manifest.read(root / "s.yaml", None), published.read(root / "Split-COCO", None)):
        assert without.proxy is None


def test_the_label_server_scores_held_out_images_with_complete_labels(coco):
    root, labels = coco
    options = {"file": str(root / "Split-COCO"), "root": str(root)}
    whole = build("published", options).proxy()
    part = part_of(build("published", options), PROXY)
    held, kept = set().union(*by_task(part.test)), set().union(*by_task(part.train))
    assert held | kept == set(whole.train.names) and not held & kept and 0.2 < len(held) / len(whole.train) < 0.4
    complete = shown(part, part.test)
    assert all(complete[name] == labels[name] & set(part.classes) for name in held)
    assert any(not complete[name] <= set(task.classes) for task, of in zip(part.tasks, by_task(part.test), strict=True)
               for name in of)  # fmt: skip
    assert part.truth is None and part.rules["proxy"] is True
    label_server = LabelServer("published", options, part=PROXY)
    try:
        assert label_server.info.tasks == part.tasks and label_server.info.fingerprint == part.fingerprint
    finally:
        label_server.close()


@pytest.mark.parametrize("source", ["coco", "scenes"])
def test_fewer_images_are_spread_over_the_tasks(coco, source):
    stream = build("published", {"file": str(coco[0] / "Split-COCO"), "root": str(coco[0])})
    stream = stream if source == "coco" else build("scenes", SCENES)
    whole = part_of(stream, PROXY)
    few, as_many = (part_of(stream, dataclasses.replace(PROXY, proxy_images=count)) for count in (200, 10**6))
    assert few.rules["proxy_images"] == 200
    assert len(few.train.used()) + len(few.test.used()) == 200
    assert 30 < len(few.test.used()) < 90  # the same share is held out
    for split in ("train", "test"):
        for some, of_all in zip(by_task(getattr(few, split)), by_task(getattr(whole, split)), strict=True):
            assert some and some <= of_all
    assert few.fingerprint != whole.fingerprint == as_many.fingerprint


def test_scenes_have_other_classes_and_other_images():
    target = build("scenes", SCENES)
    proxy = target.proxy()
    assert [len(task.classes) for task in proxy.tasks] == [2] * 5 and len(target.tasks) == 5
    assert not set(proxy.classes) & set(target.classes) and proxy.image_size == 32
    assert not set(proxy.train.names) & {*target.train.names, *target.test.names}
    assert len(proxy.train.used()) == 400 == len({*proxy.train.names})
    images = proxy.train.images
    again = pickle.loads(pickle.dumps(images))
    assert all(np.array_equal(images.read(row), again.read(row)) for row in (0, 7))
    other = build("scenes", {**SCENES, "seed": 1}).proxy()
    assert proxy.fingerprint == build("scenes", SCENES).proxy().fingerprint != other.fingerprint
    for split in (target.train, target.test):
        assert not any(np.array_equal(images.read(row), split.images.read(row)) for row in range(10))
    counts = proxy.train.labels.cooccurrence() / np.maximum(proxy.train.labels.counts(), 1)[None, :]
    assert np.abs(counts - proxy.truth).mean() < 0.05
    small = build("scenes", {**SCENES, "classes": 4, "tasks": 2}).proxy()  # no task is larger than in the stream
    assert [task.classes for task in small.tasks] == [("sea", "tree"), ("car", "table")]
    part = part_of(target, Part(2, 3, 0.3, True))
    assert len(part.tasks) == 3 and {task.classes for task in part.tasks} < {task.classes for task in proxy.tasks}


# Streams without a proxy


def test_a_stream_that_uses_all_classes_is_refused():
    rng = np.random.default_rng(0)
    labels = [Labels.from_dense(rng.random((80, 6)) < 0.3) for _ in range(2)]
    pools = [Pool(Names(f"{kind} {i}.jpg" for i in range(80)), each) for kind, each in enumerate(labels)]
    photos = Collection("photos", None, tuple("abcdef"), *pools)
    with pytest.raises(UserError) as error:
        part_of(make_stream(photos, ProtocolOptions(tasks=3), "photos"), PROXY)
    assert str(error.value) == (
        "stream photos has labels of 0 other classes, too few for a proxy stream of 3 tasks: leave out --proxy and "
        "search on the first tasks (--first-tasks)"
    )
    three_left = make_stream(photos, ProtocolOptions(tasks=2, top=3), "photos")
    assert len(part_of(three_left, PROXY).tasks) == 2
    with pytest.raises(UserError, match="stream scenes has labels of 2 other classes, too few for a proxy stream of 5"):
        part_of(build("scenes", {**SCENES, "classes": 28}), PROXY)


def test_a_stream_whose_other_labels_are_unknown_is_refused(tmp_path):
    lines = ["image,task,a,b,c,d", *(f"{i}.png,{i % 2},{1 - i % 2},0,{i % 2},0" for i in range(20))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    stream = build("table", {"file": str(tmp_path / "t.csv")})
    with pytest.raises(UserError) as error:
        part_of(stream, PROXY)
    assert str(error.value) == (
        "stream t has no labels of other classes for a proxy stream: leave out --proxy and search on the first tasks "
        "(--first-tasks)"
    )


def test_a_proxy_needs_images_to_score_and_a_limit_needs_a_proxy():
    stream = build("scenes", SCENES)
    with pytest.raises(UserError, match=r"^a proxy stream has no test images: give --hold-out"):
        part_of(stream, Part(proxy=True))
    with pytest.raises(UserError, match=r"^proxy_images 5 has no effect without proxy"):
        part_of(stream, Part(hold_out=0.2, proxy_images=5))
