import pickle

import numpy as np
import pytest

from lifelabel.errors import UserError
from lifelabel.options import read
from lifelabel.streams import scenes
from lifelabel.streams.scenes import ScenesOptions, build
from lifelabel.streams.scenes_draw import THINGS
from lifelabel.streams.stream import equal_tasks

SMALL = {"train_images": 300, "test_images": 60, "size": 32}


def fresh(**changes):
    return build(ScenesOptions(**{**SMALL, **changes}))


def pixels(split, rows):
    return np.stack([np.asarray(split.images.read(int(row))) for row in rows])


@pytest.fixture(scope="module")
def stream():
    return build(ScenesOptions())


def test_same_seed_gives_the_same_stream():
    one, two = fresh(), fresh()
    for a, b in ((one.train, two.train), (one.test, two.test)):
        assert a.labels == b.labels
        assert all(map(np.array_equal, a.rows, b.rows))
        assert np.array_equal(pixels(a, range(50)), pixels(b, range(50)))
    assert one.fingerprint == two.fingerprint != fresh(size=33).fingerprint


def test_the_fingerprint_of_the_default_stream_does_not_change(stream):
    assert stream.fingerprint == "fce77481a92a57334b0a429da135a4fbb1579233aecb5027b48d38b600057b0a"


def test_images_depend_on_the_seed_the_split_and_the_row_only():
    one, other, many = fresh(), fresh(seed=1), fresh(train_images=5000)
    drawn = pixels(one.train, range(60))
    assert one.train.labels != other.train.labels
    assert not np.array_equal(
        scenes._render("beach", ["sun"], "0/0/5", 32), scenes._render("beach", ["sun"], "1/0/5", 32)
    )
    assert (drawn[:9] != pixels(other.train, range(9))).any(axis=(1, 2, 3)).all()
    assert one.train.labels.take(np.arange(60)) != one.test.labels
    assert not np.array_equal(drawn, pixels(one.test, range(60)))
    assert np.array_equal(pixels(fresh().train, [7, 39, 7, 0]), drawn[[7, 39, 7, 0]])  # in any order
    assert one.train.labels == many.train.labels.take(np.arange(300))  # of any number of images
    assert np.array_equal(pixels(many.train, range(20)), drawn[:20])


def test_images_that_are_sent_to_another_process_have_no_labels():
    images = fresh().train.images
    sent = pickle.loads(pickle.dumps(images))
    assert sent.drawn_from_labels and set(vars(sent)) == {"options", "classes", "split", "present"}
    assert sent.name(3) == images.name(3) and len(sent) == len(images)
    assert np.array_equal(np.asarray(sent.read(3)), np.asarray(images.read(3)))


def test_images_have_the_size_asked_for_and_rows_outside_the_split_are_refused():
    small = fresh(size=33)
    image = small.test.images.read(0)
    assert (image.size, image.mode, small.image_size) == ((33, 33), "RGB", 33)
    for row in (-1, 300):
        with pytest.raises(IndexError, match=r"^rows must be in 0 … 299$"):
            small.train.images.read(row)


def test_tasks_are_disjoint_and_balanced_and_have_their_own_classes(stream):
    views = [stream.train_view(task.index) for task in stream.tasks]
    rows = np.concatenate([view.rows for view in views])
    assert np.array_equal(np.sort(rows), np.arange(6000))
    assert all(view.labels.per_image().all() for view in views)
    for split in (stream.train, stream.test):
        assert np.ptp([len(rows) for rows in split.rows]) <= 0.02 * len(split)
    labels = stream.test.labels.dense()  # those of a test image are complete
    outside = [labels[stream.test.rows[t.index], : t.offset].mean() for t in stream.tasks[1:]]
    assert labels.shape == (1500, 20) and min(outside) > 0.05


def test_an_image_goes_to_the_smallest_task_then_to_the_first():
    tasks = equal_tasks(("a", "b", "c"), 3)
    labels = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]], bool)
    assert scenes._assign_tasks(labels, tasks).tolist() == [0, 0, 1, 2, 1]


def test_truth_agrees_with_the_labels(stream):
    _, labels = scenes._draw_labels(stream.classes, 200_000, 3, scenes._TRAIN)
    counts = labels.sum(axis=0)
    cooccurrence = labels.T.astype(np.float32) @ labels.astype(np.float32)
    assert counts.min() > 5000 and stream.truth.dtype == np.float64
    assert np.abs(cooccurrence / counts[None, :] - stream.truth).max() < 0.02
    assert not np.allclose(stream.truth, stream.truth.T, atol=0.1)


def test_prevalence_and_label_count_stay_in_range(stream):
    _, labels = scenes._draw_labels(scenes._CLASSES, 50_000, 0, scenes._TEST)
    share = labels.mean(axis=0)
    assert share.min() >= 0.06 and share.max() <= 0.45
    assert 3 <= labels[:, :20].sum(axis=1).mean() <= 4
    assert scenes._draw_labels(stream.classes, 50_000, 0, scenes._TEST)[1].any(axis=1).all()


def test_most_strong_relations_are_between_tasks(stream):
    home = np.array([task.index for task in stream.tasks for _ in task.classes])
    strong = (stream.truth > 0.5) & ~np.eye(20, dtype=bool)
    across = home[:, None] != home[None, :]
    assert strong.sum() >= 15
    assert (strong & across).sum() >= 0.8 * strong.sum()


def test_catalogue_scenes_and_drawings_name_the_same_things():
    assert len(set(scenes._CLASSES)) == len(scenes._CLASSES) == 30
    assert set(THINGS) == set(scenes._CLASSES) == {name for _, _, things in scenes._SCENES.values() for name in things}
    assert sum(prior for prior, _, _ in scenes._SCENES.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", scenes._CLASSES)
def test_a_thing_changes_the_pixels(name):
    for number in range(25):
        empty, shown = (scenes._render("street", things, f"look/{number}", 64) for things in ((), (name,)))
        changed = (np.abs(shown.astype(int) - empty).max(axis=2) > 25).mean()
        assert changed > 0.01, number


@pytest.mark.parametrize("name", scenes._CLASSES)
def test_only_the_given_things_are_drawn(name, monkeypatch):
    drawn = []
    for other, kind in THINGS.items():
        spy = kind._replace(draw=lambda pen, rng, other=other: drawn.append(other))
        monkeypatch.setitem(THINGS, other, spy)
    scenes._render("beach", (), "only", 32)
    assert drawn == []
    scenes._render("beach", (name,), "only", 32)
    assert drawn == [name]


def test_the_background_varies_and_one_more_thing_does_not_change_the_rest_of_the_image():
    one, two = (scenes._render("night", (), key, 32).astype(int) for key in "xy")
    assert (np.abs(one - two).max(axis=2) > 40).mean() > 0.3  # far more than grain
    for number in range(8):
        empty, shown = (scenes._render("room", things, f"rest/{number}", 64) for things in ((), ("sun",)))
        assert (shown == empty).all(axis=2).mean() > 0.7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"classes": 31}, "scenes has 30 classes, not 31: lower stream.classes"),
        ({"classes": 4}, "4 classes cannot be divided into 5 tasks: lower stream.tasks"),
        ({"train_images": 4}, "4 training images are too few for 5 tasks: raise stream.train_images"),
        ({"size": 31}, "stream.size must be at least 32, not 31"),
        ({"size": 513}, "stream.size must be at most 512, not 513"),
        ({"seed": -1}, "stream.seed must be at least 0, not -1"),
        ({"test_images": 0}, "stream.test_images must be at least 1, not 0"),
    ],
)
def test_bad_options_are_named(values, message):
    with pytest.raises(UserError) as error:
        read(ScenesOptions, values, "stream")
    assert str(error.value) == message


def test_a_task_without_images_is_an_error():
    with pytest.raises(UserError, match=r"^no training image has \w+: raise stream.train_images$"):
        fresh(classes=20, tasks=20, train_images=20)
