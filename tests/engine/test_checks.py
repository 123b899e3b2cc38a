"""Checks before a run starts: which images have a file, and whether there is something to learn and to score."""

import dataclasses
import re

import numpy as np
import pytest
from engine.small_runs import error_of
from PIL import Image

from lifelabel.config.config import Config
from lifelabel.engine import checks
from lifelabel.engine.checks import check_images, check_metrics
from lifelabel.engine.label_server import StreamInfo
from lifelabel.metrics import METRICS, Metric
from lifelabel.runs.folder import RunFolder
from lifelabel.streams import build, manifest

ROWS = {"0.png": "a", "1.png": "a", "2.png": "b", "3.png": "b"}
"""The training images and their labels: two tasks of one class."""
TEST = {"4.png": "a", "5.png": "b"}
SCENES = {"train_images": 20, "test_images": 20, "classes": 4, "tasks": 2, "size": 32}


@pytest.fixture
def check(tmp_path):
    """Check a table of six images whose files are `files`. Returns the notes."""

    def check(files, more_rows=(), root=tmp_path / "photos", **options):
        (tmp_path / "photos").mkdir(exist_ok=True)
        for name in files:
            Image.new("RGB", (4, 4)).save(tmp_path / "photos" / name)
        rows = [f"{name},{label},train" for name, label in ROWS.items()]
        rows += [f"{name},{label},test" for name, label in TEST.items()]
        (tmp_path / "t.csv").write_text("\n".join(["image,labels,split", *rows, *more_rows]))
        stream_options = {"tasks": 2, "order": "source", **({"root": str(root)} if root else {})}
        config = Config.make({"stream": str(tmp_path / "t.csv"), "stream_options": stream_options, **options})
        info = StreamInfo.from_stream(build("table", dataclasses.asdict(config.stream_options)))
        notes = []
        check_images(info, config, RunFolder(tmp_path / "run"), notes.append)
        return notes

    return check


def test_if_all_images_have_a_file_there_is_nothing_to_report(check):
    assert check([*ROWS, *TEST]) == []
    assert check([*ROWS, *TEST], strict=True) == []


def test_problems_of_the_stream_are_reported(check):
    (note,) = check([*ROWS, *TEST, "6.png"], more_rows=["6.png,,train"])
    hint = "(stream.negatives=false leaves them out)"
    assert note == f"1 training image without a label of their task, used as negative examples {hint}: 6.png"


@pytest.mark.parametrize(
    ("missing", "what"),
    [
        (["1.png"], "1 of 6 images have no file, such as 1.png"),
        (["4.png"], "1 of 6 images have no file, such as 4.png"),
        (["0.png", "3.png", "5.png"], "3 of 6 images have no file, such as 0.png"),
    ],
)
def test_missing_images_are_reported_and_refused_if_strict(check, tmp_path, missing, what):
    files = [name for name in (*ROWS, *TEST) if name not in missing]
    what = f"{what} under {tmp_path / 'photos'}"
    assert check(files) == [f"{what}: they are left out"]
    assert error_of(check, files, strict=True) == f"{what}: leave out --strict to train without them"


@pytest.mark.parametrize("files", [[], list(ROWS), list(TEST)])
def test_without_training_or_test_images_the_folder_is_wrong(check, tmp_path, files):
    missing, first = 6 - len(files), "4.png" if files == list(ROWS) else "0.png"
    what = f"{missing} of 6 images have no file, such as {first} under {tmp_path / 'photos'}"
    assert error_of(check, files) == f"{what}: give the folder of the images with --root DIR"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()  # a run that resumes: it takes no --root
    assert error_of(check, []) == f"{what}: if they moved, edit root in {tmp_path / 'run' / 'config.yaml'}"


def test_a_folder_that_was_not_given_is_reported(tmp_path):
    """A published split does not contain its images."""
    (tmp_path / "task0").mkdir()
    for part in ("train", "test"):
        (tmp_path / "task0" / f"{part}.csv").write_text("1.jpg,1,0\n2.jpg,0,1\n")
    config = Config.make({"stream": str(tmp_path)})
    info = StreamInfo.from_stream(build(str(tmp_path), {}))
    line = error_of(check_images, info, config, RunFolder(tmp_path / "run"), print)
    assert line.startswith("4 of 4 images have no file, such as 1.jpg (no --root was given): give the ")


def test_a_manifest_of_drawn_images_is_refused(tmp_path):
    scenes = build("scenes", SCENES)
    manifest.write(scenes, tmp_path / "scenes.yaml")
    config = Config.make({"stream": str(tmp_path / "scenes.yaml")})
    info = StreamInfo.from_stream(build(str(tmp_path / "scenes.yaml"), {}))
    line = error_of(check_images, info, config, RunFolder(tmp_path / "run"), print)
    assert line == "scenes is drawn, and its manifest holds no images: train with --stream scenes"


def test_a_task_whose_images_have_no_file_is_refused(check):
    line = error_of(check, ["0.png", "1.png", *TEST])
    assert line.startswith("task 2 (b) has no training image that has a file: `lifelabel data inspect` ")


def test_a_stream_without_a_test_image_is_refused():
    info = StreamInfo.from_stream(build("scenes", SCENES))
    info = dataclasses.replace(info, test_rows=np.zeros(0, np.int64))
    line = error_of(check_images, info, Config.make({}), RunFolder("run"), print)
    assert line == "stream scenes has no test image: nothing could be scored"


# Metrics


def test_a_metric_of_a_plugin_that_fails_is_one_line(monkeypatch):
    check_metrics()
    monkeypatch.setattr(METRICS, "_items", dict(METRICS._items))
    METRICS.register("good", Metric("me", "the share of labels", lambda scored: float(scored.labels.double().mean())))
    check_metrics()
    METRICS.register("bad", Metric("me", "divides by zero", lambda scored: 1 / 0))
    assert error_of(check_metrics) == "the metric 'bad' of a plug-in failed: ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", "200"), r"workers must be at most \d+ on this machine, which has \d+ cores, not 200"),
        (("--batch-size", "1000000"), r"batches of 1,000,000 images of 64 × 64 pixels need at least \d+ GB, and this "),
        (("--image-size", "2048", "--batch-size", "1000"), r"batches of 1,000 images of 2048 × 2048 pixels need at "),
        (("--image-size", "4096"), "image_size must be at most 2048, not 4096"),
        (("--word-dim", "100000"), "word_dim must be at most 4096, not 100000"),
        (("--set", "method.hidden=100000"), "method.hidden must be at most 16384, not 100000"),
        (("--set", "seed=" + "1" * 99), r"seed must be at most 2147483647, not 1+\.\.\.1+"),
        (("--set", "seed=" + ":".join("1" * 99)), "seed must be a whole number, not '1:1:"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_options_that_no_machine_can_hold(refused, tmp_path, monkeypatch, options, message):
    monkeypatch.setattr("lifelabel.images.loader.num_cores", lambda: 4)
    monkeypatch.setattr("lifelabel.images.loader.total_memory", lambda: 300 * 2**30)
    line = refused("train", "--method", "agcn", "--device", "cpu", *options, "--out", tmp_path / "run")
    assert re.match(message, line) and len(line) < 250


def test_a_step_that_needs_more_memory_than_there_is(refused, main, small, monkeypatch, tmp_path):
    """The backbone of this run keeps 0.64 MB for an image, for 8 new and 8 stored ones."""
    train = ("train", "--method", "er", *small, "--batch-size", 8, "--out")
    monkeypatch.setattr(checks, "available_memory", lambda: 10_000_000)
    line = refused(*train, tmp_path / "a")
    assert line.startswith("a step of 16 images of 64 × 64 pixels keeps 0.0 GB of activations, and 0.0 GB of memory")
    assert not (tmp_path / "a").exists()
    monkeypatch.setattr(checks, "available_memory", lambda: 15_000_000)
    done = main(*train, tmp_path / "b")
    assert done.returncode == 0 and "with gaps in the heap it may take 2 times as many" in done.stderr
