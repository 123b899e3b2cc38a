import numpy as np
import pytest

from lifelabel.errors import UserError
from lifelabel.options import read
from lifelabel.streams import scenes
from lifelabel.streams.base import split_classes
from lifelabel.streams.scenes import CATALOGUE, SCENES, TEST, TRAIN, ScenesOptions, allot, build, draw_labels, render
from lifelabel.streams.scenes_draw import THINGS

SMALL = {"train_images": 300, "test_images": 60, "size": 32}


def fresh(**changes):
    """A stream whose images nobody rendered yet: `build` would hand out the one it keeps."""
    return build.__wrapped__(ScenesOptions(**{**SMALL, **changes}))


@pytest.fixture(scope="module")
def stream():
    return build(ScenesOptions())


def test_same_seed_gives_the_same_stream():
    one, two = fresh(), fresh()
    for a, b in ((one.train, two.train), (one.test, two.test)):
        assert np.array_equal(a.labels, b.labels)
        assert np.array_equal(a.task, b.task)
        assert np.array_equal(a.images(np.arange(50)), b.images(np.arange(50)))


def test_other_seed_gives_other_labels_and_images():
    one, two = fresh(), fresh(seed=1)
    assert not np.array_equal(one.train.labels, two.train.labels)
    assert not np.array_equal(render("beach", ["sun"], "0/0/5", 32), render("beach", ["sun"], "1/0/5", 32))
    assert (one.train.images(np.arange(9)) != two.train.images(np.arange(9))).any(axis=(1, 2, 3)).all()


def test_train_and_test_images_differ():
    small = fresh()
    assert not np.array_equal(small.train.labels[:60], small.test.labels)
    assert not np.array_equal(small.train.images(np.arange(60)), small.test.images(np.arange(60)))


def test_images_do_not_depend_on_order_or_batch():
    whole = fresh().train.images(np.arange(40))
    other = fresh().train
    assert np.array_equal(other.images(np.array([31])), whole[[31]])
    assert np.array_equal(other.images(np.array([7, 39, 7, 0])), whole[[7, 39, 7, 0]])
    assert np.array_equal(other.images(np.arange(39, -1, -1)), whole[::-1])


def test_images_do_not_depend_on_how_many_there_are():
    few, many = fresh(), fresh(train_images=5000)
    assert np.array_equal(few.train.labels, many.train.labels[:300])
    assert np.array_equal(few.train.images(np.arange(20)), many.train.images(np.arange(20)))


def test_beyond_the_cache_images_are_the_same(monkeypatch):
    kept = fresh(test_images=300).test
    expected = kept.images(np.arange(30))
    monkeypatch.setattr(scenes, "CACHE_BYTES", 300 * 32 * 32 * 3 - 1)
    on_demand = fresh(test_images=300).test
    assert np.array_equal(on_demand.images(np.arange(30)), expected)
    assert on_demand.images.kept is None
    assert on_demand.images(np.arange(0)).shape == (0, 32, 32, 3)
    assert kept.images.done.sum() == 30


def test_cached_images_are_rendered_once(monkeypatch):
    calls = []
    monkeypatch.setattr(scenes, "render", lambda *args: calls.append(args) or np.zeros((32, 32, 3), np.uint8))
    images = fresh().test.images
    images(np.array([3, 4]))
    images(np.array([4, 3, 5]))
    assert [key for _, _, key, _ in calls] == ["0/1/3", "0/1/4", "0/1/5"]


def test_training_images_are_not_kept():
    images = fresh().train.images
    images(np.arange(20))
    assert images.kept is None


def test_changing_a_batch_leaves_the_stream_alone():
    images = fresh().train.images
    batch = images(np.array([2]))
    before = batch.copy()
    batch[:] = 0
    assert np.array_equal(images(np.array([2])), before)


@pytest.mark.parametrize("row", [-1, 300])
def test_rows_outside_the_split_are_refused(row):
    with pytest.raises(IndexError, match="0 … 299"):
        fresh().train.images(np.array([row]))


def test_images_have_the_size_asked_for():
    images = fresh(size=33).test.images(np.arange(3))
    assert images.shape == (3, 33, 33, 3)
    assert images.dtype == np.uint8


def test_equal_options_share_one_stream():
    assert build(ScenesOptions(**SMALL)) is build(ScenesOptions(**SMALL))
    assert not build(ScenesOptions(**SMALL)).train.labels.flags.writeable


def test_tasks_are_disjoint_balanced_and_show_their_own_classes(stream):
    views = [stream.train_view(task.index) for task in stream.tasks]
    rows = np.concatenate([view.rows for view in views])
    assert np.array_equal(np.sort(rows), np.arange(6000))
    assert all(view.labels.any(axis=1).all() for view in views)
    for split in (stream.train, stream.test):
        assert np.ptp(np.bincount(split.task, minlength=5)) <= 0.02 * len(split)


def test_allot_takes_the_least_filled_task_then_the_lowest():
    tasks = split_classes(("a", "b", "c"), 3)
    labels = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]], bool)
    assert allot(labels, tasks).tolist() == [0, 0, 1, 2, 1]


def test_test_labels_are_complete(stream):
    outside = [stream.test.labels[stream.test.task == t.index][:, : t.first].mean() for t in stream.tasks[1:]]
    assert stream.test.labels.shape == (1500, 20)
    assert min(outside) > 0.05


def test_truth_is_what_the_labels_show(stream):
    _, labels = draw_labels(stream.classes, 200_000, 3, TRAIN)
    counts = labels.sum(axis=0)
    together = labels.T.astype(np.float32) @ labels.astype(np.float32)
    assert counts.min() > 5000
    assert stream.truth.dtype == np.float64
    assert np.abs(together / counts[None, :] - stream.truth).max() < 0.02
    assert not np.allclose(stream.truth, stream.truth.T, atol=0.1)


def test_prevalence_and_label_count_stay_in_range(stream):
    _, labels = draw_labels(CATALOGUE, 50_000, 0, TEST)
    share = labels.mean(axis=0)
    assert share.min() >= 0.06
    assert share.max() <= 0.45
    assert 3 <= labels[:, :20].sum(axis=1).mean() <= 4
    assert draw_labels(stream.classes, 50_000, 0, TEST)[1].any(axis=1).all()


def test_most_strong_relations_run_across_tasks(stream):
    home = np.array([task.index for task in stream.tasks for _ in task.classes])
    strong = (stream.truth > 0.5) & ~np.eye(20, dtype=bool)
    across = home[:, None] != home[None, :]
    assert strong.sum() >= 15
    assert (strong & across).sum() >= 0.8 * strong.sum()


def test_catalogue_scenes_and_drawings_name_the_same_things():
    assert len(set(CATALOGUE)) == len(CATALOGUE) == 30
    assert set(THINGS) == set(CATALOGUE) == {name for _, _, things in SCENES.values() for name in things}
    assert sum(prior for prior, _, _ in SCENES.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_thing_is_seen_when_shown(name):
    for number in range(25):
        empty, shown = (render("street", things, f"look/{number}", 64) for things in ((), (name,)))
        changed = (np.abs(shown.astype(int) - empty).max(axis=2) > 25).mean()
        assert changed > 0.01, number


@pytest.mark.parametrize("name", CATALOGUE)
def test_only_what_is_shown_is_drawn(name, monkeypatch):
    drawn = []
    for other, kind in THINGS.items():
        spy = kind._replace(draw=lambda pen, rng, other=other: drawn.append(other))
        monkeypatch.setitem(THINGS, other, spy)
    render("beach", (), "only", 32)
    assert drawn == []
    render("beach", (name,), "only", 32)
    assert drawn == [name]


def test_a_picture_without_things_is_only_a_backdrop():
    assert np.array_equal(render("night", (), "x", 32), render("night", (), "x", 32))
    one, two = (render("night", (), key, 32).astype(int) for key in "xy")
    assert (np.abs(one - two).max(axis=2) > 40).mean() > 0.3  # far more than grain


def test_adding_a_thing_leaves_the_rest_of_the_picture_alone():
    for number in range(8):
        empty, shown = (render("room", things, f"rest/{number}", 64) for things in ((), ("sun",)))
        assert (shown == empty).all(axis=2).mean() > 0.7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"classes": 31}, "scenes has 30 classes, not 31: lower stream.classes"),
        ({"classes": 4}, "4 classes cannot be cut into 5 tasks: lower stream.tasks"),
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
    with pytest.raises(UserError, match=r"^no training image shows \w+: raise stream.train_images$"):
        fresh(classes=20, tasks=20, train_images=20)
