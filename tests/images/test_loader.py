import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

from lifelabel.images.loader import Job, Loader, TestImages, default_workers
from lifelabel.images.photographs import FileImages
from lifelabel.images.transforms import JobReader, load_batch
from lifelabel.streams import Names, build


@pytest.fixture
def photographs(tmp_path):
    """Twelve images of noise. Number 5 is damaged, and number 9 has no file."""
    rng = np.random.default_rng(0)
    names = [f"{i}.jpg" for i in range(12)]
    for i, name in enumerate(names):
        if i != 9:
            Image.fromarray(rng.integers(0, 256, (40 + i, 50, 3), dtype=np.uint8)).save(tmp_path / name)
    (tmp_path / "5.jpg").write_bytes((tmp_path / "5.jpg").read_bytes()[:200])
    return FileImages(tmp_path, Names(names))


def jobs(augment="crop-flip"):
    return [Job("train", np.arange(first, first + 4), augment, (7, 0)) for first in (0, 4, 8)]


def run(source, workers, jobs):
    loader = Loader({"train": source, "test": source}, 32, workers, 4)
    try:
        return [(b.pixels.clone(), b.good.tolist(), b.bad) for b in loader.batches(jobs)]
    finally:
        loader.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(photographs, workers):
    """Neither does a resumed run, which requests the batches that are left."""
    before = torch.get_rng_state()
    inline, rest = run(photographs, 0, jobs()), run(photographs, 0, jobs()[1:])
    ahead = run(photographs, workers, jobs())
    assert len(inline) == len(ahead) == 3
    for (pixels, *good_and_bad), (other, *others) in zip([*inline, *inline[1:]], [*ahead, *rest], strict=True):
        assert torch.equal(pixels, other) and good_and_bad == others
    assert torch.equal(torch.get_rng_state(), before)


def test_bad_images_are_left_out_and_named(photographs):
    batches = run(photographs, 0, jobs("none"))
    assert [good for _, good, _ in batches] == [[0, 1, 2, 3], [0, 2, 3], [0, 2, 3]]
    assert [row for _, _, bad in batches for row, _ in bad] == [5, 9]
    assert batches[2][2] == [(9, "no such file")]
    assert batches[1][0].shape == (3, 32, 32, 3)
    assert np.array_equal(batches[0][0].numpy(), load_batch(photographs, np.arange(4), 32, "none", None)[0])


def test_workers_run_from_pass_to_pass_and_end_with_close(photographs):
    loader = Loader({"train": photographs}, 32, 1, 4)
    list(loader.batches(jobs()))
    ((worker, _),) = loader.workers.children
    os.kill(worker.pid, signal.SIGINT)  # a Ctrl-C reaches all processes of a terminal: the workers ignore it
    time.sleep(0.1)
    assert len(list(loader.batches(jobs()))) == 3
    assert loader.workers.children[0][0].pid == worker.pid
    loader.close()
    worker.join(10)
    assert not worker.is_alive()


def test_a_batch_is_unchanged_until_the_next_is_requested(photographs):
    """Memory is reused: with many more batches than buffers, each must still hold its own images."""
    many = [Job("train", np.array([k % 5, (k + 1) % 5]), "none") for k in range(40)]
    loader = Loader({"train": photographs}, 32, 2, 2)
    for k, loaded in enumerate(loader.batches(many)):
        time.sleep(0.002)  # the workers run ahead meanwhile
        expected = load_batch(photographs, many[k].rows, 32, "none", None)[0]
        assert np.array_equal(loaded.pixels.numpy(), expected)
    loader.close()


def test_worker_processes_import_no_torch():
    code = f"import sys, {JobReader.__module__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_images_that_are_drawn_from_labels_are_not_drawn_in_this_process():
    source = build("scenes", {"train_images": 20, "test_images": 8, "size": 32}).test.images
    sent = pickle.loads(pickle.dumps(source))
    loader = Loader({"test": sent}, 32, 0)
    (loaded,) = loader.batches([Job("test", np.arange(8))])
    assert np.array_equal(loaded.pixels[5].numpy(), np.asarray(source.read(5)))
    assert "drawn" not in vars(sent)  # a worker drew them
    loader.close()


def test_test_images_are_read_once_if_they_fit_else_again(photographs, monkeypatch):
    loader = Loader({"test": photographs}, 32, 0, 4)
    images, again = TestImages(loader, np.arange(12)), TestImages(loader, np.array([5, 9]))
    assert not torch.cat(list(again)).numel() and not len(again.rows) and len(again.bad) == 2  # none can be read
    monkeypatch.setattr("lifelabel.images.loader.CACHE_BYTES", 12 * 32 * 32 * 3 - 1)
    again = TestImages(loader, np.arange(12))
    first = torch.cat(list(images))
    assert torch.equal(torch.cat(list(again)), first) and torch.equal(torch.cat(list(again)), first)
    assert images.rows.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 10, 11] and [row for row, _ in images.bad] == [5, 9]
    monkeypatch.setattr(loader, "batches", None)
    assert torch.equal(torch.cat(list(images)), first) and [row for row, _ in images.bad] == [5, 9]
    assert images.cached and not again.cached


def test_scoring_batches_stay_small():
    source = build("scenes", {"train_images": 20, "test_images": 8, "size": 32}).test.images
    for size, expected in ((32, 256), (448, 6), (4096, 1)):
        loader = Loader({"test": source}, size, 1)
        sizes = [len(job.rows) for job in loader.scoring_jobs("test", np.arange(1000))]
        assert max(sizes) == expected and sum(sizes) == 1000


def test_workers_by_default():
    assert default_workers(torch.device("cpu")) == 0
    assert 1 <= default_workers(torch.device("cuda")) <= 16
