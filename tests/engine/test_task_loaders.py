"""`task_loaders`: the data of a run, for a training loop of your own."""

import dataclasses

import numpy as np
import pytest
import torch
from engine.small_runs import ON_PHOTOGRAPHS
from PIL import Image

from lifelabel import task_loaders
from lifelabel.engine import run as engine
from lifelabel.errors import UserError
from lifelabel.images.transforms import load_batch
from lifelabel.methods import METHODS
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.streams import build
from lifelabel.streams.subsets import sort_by_name

SCENES = {"train_images": 50, "test_images": 40, "classes": 6, "tasks": 3, "size": 32}
UNREADABLE = {f"{i}.png" for i in (3, 8, 20, 21, 22, 23)}


@pytest.fixture
def photographs(tmp_path):
    """Options of a stream of 48 photographs in two overlapping tasks, listed in another order than by name.

    Some cannot be read: number 3 has no file, number 8 (a test image) is empty, and all of 20 to 23 are empty.
    """
    rng = np.random.default_rng(0)
    lines = ["image,split,a,b,c,d"]
    for i in rng.permutation(48).tolist():
        labels = (rng.random(4) < 0.3) | (np.arange(4) == i % 3)
        lines.append(f"{i}.png,{'test' if i % 4 == 0 else 'train'}," + ",".join(map(str, labels.astype(int))))
        if i != 3:
            Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    for i in (8, 20, 21, 22, 23):
        (tmp_path / f"{i}.png").write_bytes(b"")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    return {"file": str(tmp_path / "t.csv"), "tasks": 2, "order": "source", "protocol": "overlap"}


def batches_of_a_run(monkeypatch, folder, stream, stream_options, **options):
    """(task index, pixels, labels, known) of every batch that a method gets."""
    seen = []

    class Recorded(FineTuning):
        def observe(self, batch):
            host = batch.host
            seen.append((len(self.tasks) - 1, host.pixels.clone(), batch.labels.clone(), batch.known.clone()))
            return super().observe(batch)

    monkeypatch.setitem(METHODS._items, "recorded", Recorded)
    given = {"stream": stream, "stream_options": stream_options, "max_skipped": 1, **ON_PHOTOGRAPHS, **options}
    engine.train(folder, given, method="recorded")
    return seen


def assert_same_batches(got, expected):
    for one, other in zip(got, expected, strict=True):
        for value, wanted in zip(map(torch.as_tensor, one), map(torch.as_tensor, other), strict=True):
            assert value.dtype == wanted.dtype and torch.equal(value, wanted)


def training_batches(*arguments, **options):
    return [(data.task.index, *batch) for data in task_loaders(*arguments, **options) for batch in data.train]


@pytest.mark.parametrize("augment", ["none", "flip", "crop-flip"])
@pytest.mark.parametrize("seed", [0, 3])
def test_training_batches_are_those_of_a_run(augment, seed, monkeypatch, tmp_path):
    options = {"augment": augment, "seed": seed}
    expected = batches_of_a_run(monkeypatch, tmp_path / "run", "scenes", SCENES, batch_size=8, **options)
    got = training_batches("scenes", **options, **SCENES)
    assert_same_batches(got, expected)
    other = training_batches("scenes", augment=augment, seed=seed + 1, **SCENES)
    assert not torch.equal(got[0][1], other[0][1])


def test_training_batches_of_photographs_are_those_of_a_run(photographs, monkeypatch, tmp_path):
    """Photographs have rows in the order of their names, and the augmentation of an image depends on its row."""
    options = {"augment": "crop-flip", "seed": 2, "batch_size": 5}
    expected = batches_of_a_run(monkeypatch, tmp_path / "run", "table", photographs, **options)
    got = training_batches("table", image_size=32, **options, **photographs)
    assert_same_batches(got, expected)
    assert {task for task, *_ in got} == {0, 1}


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(workers, photographs):
    inline = list(task_loaders("table", 4, image_size=32, seed=1, **photographs))
    several = list(task_loaders("table", 4, image_size=32, seed=1, workers=workers, **photographs))
    for one, other in zip(inline, several, strict=True):
        assert_same_batches(other.train, one.train)
        assert_same_batches(other.test, one.test)


def test_the_test_set_is_cumulative(photographs):
    for stream in (build("scenes", SCENES), sort_by_name(build("table", photographs))):
        seen = 0
        for data in task_loaders(stream, 7, image_size=32):
            rows = np.unique(np.concatenate(stream.test.rows[: data.task.index + 1]))
            pixels, good, _ = load_batch(stream.test.images, rows, 32, "none", None)
            got_pixels, labels, known = (torch.cat(part) for part in zip(*data.test, strict=True))
            assert np.array_equal(got_pixels.numpy(), pixels)
            expected = stream.test.labels.take(rows[good]).dense(slice(0, data.task.end))
            assert np.array_equal(labels.numpy(), expected.astype(np.float32)) and known.all()
            assert len(pixels) > seen
            seen = len(pixels)


def test_unreadable_images_are_left_out(photographs):
    stream = sort_by_name(build("table", photographs))
    for data in task_loaders("table", 1, image_size=32, **photographs):
        task = data.task
        rows = [row for row in stream.train.rows[task.index] if stream.train.names[row] not in UNREADABLE]
        assert len(list(data.train)) == len(rows) < len(stream.train.rows[task.index])  # a batch is one image
        labels = sum(labels for _, labels, _ in data.train)[0]
        expected = stream.train.labels.take(np.array(rows)).dense(stream.visible_columns(task))
        assert labels.tolist() == expected.sum(0).tolist()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_without_a_readable_image_is_left_out(workers, photographs, tmp_path):
    for i in range(48):
        if i % 4 and i != 7:
            (tmp_path / f"{i}.png").write_bytes(b"")
    for data in task_loaders("table", 4, image_size=32, workers=workers, **photographs):
        assert [len(pixels) for pixels, _, _ in data.train] == [1] and len(data.train) > 1
    (tmp_path / "7.png").write_bytes(b"")
    for data in task_loaders("table", 4, image_size=32, workers=workers, **photographs):
        assert list(data.train) == []


def test_a_loader_can_be_read_again_and_leaves_the_random_numbers_of_the_caller():
    before = torch.get_rng_state()
    first = next(task_loaders("scenes", **SCENES))
    assert_same_batches(first.train, first.train)
    assert len(first.train) == len(list(first.train)) == -(-len(first.train.dataset.view.rows) // 8)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_stream_can_be_a_name_a_file_or_an_object(photographs):
    file = photographs.pop("file")
    table = build(file, photographs)
    for stream, options in ((file, photographs), (table, {})):
        tasks = [data.task for data in task_loaders(stream, image_size=32, **options)]
        assert tasks == list(table.tasks)
    drawn = dataclasses.replace(table, image_size=16)
    assert next(iter(next(task_loaders(drawn)).train))[0].shape[1:] == (16, 16, 3)
    assert next(iter(next(task_loaders(table)).train))[0].shape[1:] == (224, 224, 3)


def test_a_mistake_is_one_line():
    built = build("scenes", SCENES)
    for message, stream, options in (
        (r"^unknown augmentation 'flop': did you mean 'flip'\?", "scenes", {"augment": "flop"}),
        (r"^batch_size must be at least 1, not 0$", "scenes", {"batch_size": 0}),
        (r"^unknown option of stream scenes 'sizes'", "scenes", {"sizes": 3}),
        (r"^unknown stream 'nothing'", "nothing", {}),
        (r"^a stream that is built takes no options, such as tasks: build it with them$", built, {"tasks": 2}),
    ):
        with pytest.raises(UserError, match=message):
            next(task_loaders(stream, **options))
