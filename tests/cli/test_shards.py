"""Commands with `--root` of tar shards."""

import json
import re
import signal
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lifelabel
from lifelabel.errors import Stopped
from lifelabel.images import shards

TRAIN = ["--method", "fine-tuning", "--weights", "none", "--backbone", "tiny", "--image-size", "16", "--device", "cpu"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Forty images in a folder and in four shards, of which a table lists one more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIFELABEL_CACHE", str(tmp_path / "cache"))
    shards._index.cache_clear()
    shards._open.cache_clear()
    (tmp_path / "files").mkdir()
    (tmp_path / "shards").mkdir()
    rng, rows = np.random.default_rng(0), ["image,labels,split", "missing.jpg,a,train"]
    for n in range(40):
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(f"files/{n}.jpg")
        with tarfile.open(f"shards/train-{n % 4}.tar", "a") as tar:
            tar.add(f"files/{n}.jpg", f"{n}.jpg")
        rows.append(f"{n}.jpg,{'abcd'[n // 2 % 4]},{'test' if n % 2 else 'train'}")
    (tmp_path / "photos.csv").write_text("\n".join(rows))
    (tmp_path / "new.csv").write_text(
        "\n".join([rows[0], *(f"{n}.jpg,e,{'test' if n % 2 else 'train'}" for n in range(8))])
    )


def lines(run, name):
    return [json.loads(line) for line in Path(run, name).read_text(encoding="utf-8").splitlines()]


def test_shards_give_the_results_of_files(main, output):
    for root, out in (("files", "a"), ("shards/train-{0..3}.tar", "b")):
        done = main("train", "--stream", "photos.csv", "--root", root, "--tasks", "2", *TRAIN, "--out", out)
        assert done.returncode == 0, done.stderr
        assert "1 of 41 images have no file, such as missing.jpg under" in done.stderr
    for name in ("history.jsonl", "skipped.jsonl"):
        assert lines("a", name) == lines("b", name) != []
    output("extend", "b", "new.csv", "--root", "shards", "--set", "image_order=shards", "--out", "c", "-q")
    output("evaluate", "c", "photos.csv", "--root", "shards/train-{0..3}.tar", "--device", "cpu")
    output("data", "inspect", "photos.csv", "--root", "shards", "--tasks", "2", "--decode", "--out", "look")
    assert "missing.jpg" in Path("look/report.md").read_text(encoding="utf-8")


class StopInTheSecondTask(lifelabel.Callback):
    def evaluated(self, record):
        signal.raise_signal(signal.SIGTERM)  # the first batch of the second task still runs


def test_a_resumed_run_continues_in_the_order_of_the_shards():
    options = {
        "stream": "photos.csv", "root": "shards", "tasks": 2, "method": "fine-tuning", "weights": "none",
        "backbone": "tiny", "image_size": 16, "device": "cpu", "image_order": "shards", "batch_size": 2,
    }  # fmt: skip
    whole = lifelabel.train("whole", **options)
    lifelabel.train("random", **options | {"image_order": "random"})
    with pytest.raises(Stopped):
        lifelabel.train("run", callback=StopInTheSecondTask(), **options)
    resumed = lifelabel.resume("run")
    assert resumed.metrics == whole.metrics
    assert lines("run", "history.jsonl") == lines("whole", "history.jsonl") != lines("random", "history.jsonl")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--root", "files", "--image-order", "shards"], "photos are not in tar shards: remove image_order=shards"),
        (["--root", "no.tar"], "cannot read the shard .*no.tar: No such file or directory"),
        (["--root", "no"], "there is no folder .*no; give another --root DIR"),
    ],
)
def test_a_mistake_is_one_line(refused, words, line):
    assert re.search(line, refused("train", "--stream", "photos.csv", *words, *TRAIN, "--out", "x"))
