"""A run: each image once, no image stored, order by the seed, and resuming after a kill at any moment."""

import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from support.no_waiting import no_waiting

from lifelabel.config.config import Config
from lifelabel.engine import run as engine
from lifelabel.engine.callback import Callback
from lifelabel.errors import Diverged, HiddenLabel
from lifelabel.methods import METHODS
from lifelabel.methods.agcn import AGCN
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.methods.multi_task import MultiTask
from lifelabel.streams import STREAMS, build, manifest

SMALL = {"train_images": 90, "test_images": 60, "classes": 8, "tasks": 3, "size": 32}


def options(**more):
    return {"stream_options": SMALL, "device": "cpu", "method_options": {}, **more}


def stream():
    return STREAMS["scenes"].build(Config.make(options()).stream_options)


def recorded(base, monkeypatch):
    """A method that learns as `base` does and records its batches."""

    class Recorded(base):
        batches: list = []  # noqa: RUF012
        alive: list = []  # noqa: RUF012

        def observe(self, batch):
            self.batches.append((len(self.tasks), batch.images.clone(), batch.labels.clone()))
            self.alive.append(weakref.ref(batch.images))
            return super().observe(batch)

    monkeypatch.setitem(METHODS._items, "recorded", Recorded)
    return Recorded


def keys(images):
    return [np.asarray(image, np.float64).round(3).tobytes() for image in images]


@pytest.mark.parametrize("base", [AGCN, MultiTask])
def test_each_training_image_is_used_once_with_the_labels_of_its_task(base, monkeypatch, tmp_path):
    method = recorded(base, monkeypatch)
    engine.train(tmp_path / "run", options(method="recorded", augment="none"))
    source = stream()
    pixels = np.stack([np.asarray(source.train.images.read(row)) for row in range(len(source.train))])
    row = {key: i for i, key in enumerate(keys(((pixels / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2)))}
    assert len(row) == len(source.train)
    used = []
    for task, images, labels in method.batches:
        rows = [row[key] for key in keys(images)]
        used += rows
        columns = slice(None) if base.joint else source.tasks[task - 1].columns
        assert np.array_equal(labels.numpy().astype(bool), source.train.labels.dense()[rows, columns])
        assert base.joint or set(rows) <= set(source.train.rows[task - 1].tolist())
    assert sorted(used) == list(range(len(source.train)))


def test_a_batch_that_is_stored_has_only_the_labels_of_its_own_task(monkeypatch, tmp_path):
    """What a replay buffer can store: the labels that were visible when the image was learned, and their mask."""
    stored = []

    class Replays(FineTuning):
        def observe(self, batch):
            stored.append((len(self.tasks), batch))
            return super().observe(batch)

    monkeypatch.setitem(METHODS._items, "replays", Replays)
    engine.train(tmp_path / "run", options(method="replays"))
    tasks = [task.classes for task in stream().tasks]
    for task, batch in stored:
        assert batch.classes == tasks[task - 1]
        assert batch.labels.shape == batch.known.shape == (len(batch.images), len(batch.classes)) and batch.known.all()
        assert torch.equal(batch.label(batch.classes[1]), batch.labels[:, 1])
        with pytest.raises(HiddenLabel, match=f"the label '{tasks[task % 3][0]}' is hidden"):
            batch.label(tasks[task % 3][0])


def test_the_upper_bound_learns_only_what_is_known(monkeypatch, tmp_path):
    """In a manifest without hidden labels an image has the labels of its own task, and the mask states this."""
    root, out = tmp_path / "photos", tmp_path / "stream.yaml"
    root.mkdir()
    lines = ["image,labels,split"]
    for i in range(48):
        Image.new("RGB", (20, 20), (5 * i, 0, 0)).save(root / f"{i}.png")
        lines.append(f"{i}.png,{'a;b' if i % 2 else 'a' if i % 3 else 'b'},{'test' if i % 6 == 0 else 'train'}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    manifest.write(build("table", {"file": str(tmp_path / "t.csv"), "root": str(root), "tasks": 2}), out)
    method, notes = recorded(MultiTask, monkeypatch), []
    callback = Callback()
    callback.note = notes.append
    masks = []
    monkeypatch.setattr(method, "observe", lambda self, batch: masks.append(batch) or MultiTask.observe(self, batch))
    given = {"stream": str(out), "stream_options": {"root": str(root)}, "method": "recorded", "device": "cpu"}
    more = {"backbone": "tiny", "weights": "none", "image_size": 32}
    engine.train(tmp_path / "run", {**given, **more}, callback=callback)
    known = torch.cat([batch.known for batch in masks])
    assert known.shape == (40, 2) and (known.sum(1) == 1).all()
    assert not torch.cat([batch.labels for batch in masks])[~known].any()
    assert any("learns from those, and is not an upper bound" in note for note in notes)


def test_no_image_is_stored(monkeypatch, tmp_path):
    method = recorded(AGCN, monkeypatch)
    sizes = []
    for images in (60, 180):
        method.batches.clear()
        method.alive.clear()
        stream_options = {**SMALL, "train_images": images}
        result = engine.train(tmp_path / str(images), options(method="recorded", stream_options=stream_options))
        gc.collect()
        assert len(method.alive) >= images // 8
        assert all(reference() is None for reference in method.alive)
        state = torch.load(result.folder / "checkpoint.pt", weights_only=True)
        sizes.append(count_numbers(state["method"]))
    assert sizes[0] == sizes[1]  # three times the images, not one number more


def count_numbers(value):
    if isinstance(value, dict):
        return sum(map(count_numbers, value.values()))
    if isinstance(value, list):
        return sum(map(count_numbers, value))
    return value.numel() if isinstance(value, torch.Tensor) else 1


def test_data_order_follows_the_seed(monkeypatch, tmp_path):
    method = recorded(AGCN, monkeypatch)

    def order(seed, name):
        method.batches.clear()
        engine.train(tmp_path / name, options(method="recorded", seed=seed, augment="none"))
        return [key for _, images, _ in method.batches for key in keys(images)]

    first = order(0, "a")
    assert order(0, "b") == first
    assert order(1, "c") != first


def test_the_same_seed_gives_the_same_run(tmp_path):
    a, b = (engine.train(tmp_path / name, options(method="agcn", seed=3)) for name in "ab")
    assert a.metrics == b.metrics
    other = engine.train(tmp_path / "c", options(method="agcn", seed=4))
    assert other.metrics["final"]["mAP"] != a.metrics["final"]["mAP"]


def test_the_random_numbers_of_the_caller_are_not_changed(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    engine.train(tmp_path / "a", options(method="fine-tuning"))
    assert torch.equal(torch.rand(3), expected)


def test_the_table_of_scores_has_the_shape_of_the_stream(tmp_path):
    metrics = engine.train(tmp_path / "a", options(method="agcn")).metrics
    for name in ("mAP", "CF1", "OF1"):
        table = metrics["by_task"][name]
        assert [[value is None for value in row] for row in table] == [
            [False, True, True],
            [False, False, True],
            [False, False, False],
        ]
    final = metrics["final"]
    by_class = [v for v in final["ap"].values() if v is not None]
    assert final["mAP"] == pytest.approx(np.mean(by_class)) == pytest.approx(final["conventions"]["mAP"])
    assert set(final["forgetting"]) == set(final["relative_forgetting"]) == {"mAP", "CF1", "OF1"}
    assert set(final["acm_error"]) == {"all", "intra", "old_new", "new_old"}


def test_the_upper_bound_has_one_task_and_has_no_forgetting(tmp_path):
    metrics = engine.train(tmp_path / "a", options(method="multi-task")).metrics
    assert len(metrics["per_task"]) == 1
    assert len(metrics["per_task"][0]["cumulative"]) == 3
    assert "forgetting" not in metrics["final"]
    assert metrics["finished"]


CHILD = """
import json, os, signal, sys
import torch
from lifelabel.engine import run as engine
from lifelabel.engine.callback import Callback

folder, options, event, count, number = sys.argv[1:]
left = int(count)

def tick(name):
    global left
    if name == event:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), int(number))

class Killer(Callback):
    def steps(self, task, images, losses):
        tick("step")
    def evaluated(self, record):
        tick("evaluated")

compute_scores = engine.compute_scores
def compute_scores_and_tick(*arguments):
    tick("evaluating")
    return compute_scores(*arguments)
engine.compute_scores = compute_scores_and_tick

save = torch.save
def save_half(value, handle):
    if event == "saving" and left == 1:
        handle.write(b"half a checkpoint")
        handle.flush()
    tick("saving")
    save(value, handle)
torch.save = save_half

engine.train(folder, json.loads(options), callback=Killer())
"""

KILLS = [
    ("agcn", "saving", 3, signal.SIGKILL, 1000),  # the history is longer than at the last checkpoint
    ("agcn", "step", 2, signal.SIGKILL, 0),  # in the first task
    ("agcn", "step", 7, signal.SIGKILL, 0),  # in the second, with an expert
    ("agcn", "saving", 6, signal.SIGKILL, 0),  # while a checkpoint is written
    ("agcn", "evaluating", 2, signal.SIGKILL, 0),  # between the last step and the score of a task
    ("agcn", "evaluated", 1, signal.SIGKILL, 0),  # between two tasks
    ("agcn", "step", 8, signal.SIGINT, 0),  # Ctrl-C
    ("fine-tuning", "step", 6, signal.SIGTERM, 0),
    ("multi-task", "step", 5, signal.SIGKILL, 0),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that were not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    more = {"checkpoint_seconds": 0}
    return {m: engine.train(folder / m, options(method=m, **more)) for m in ("agcn", "fine-tuning", "multi-task")}


@pytest.mark.parametrize(("method", "event", "count", "number", "seconds"), KILLS)
def test_a_killed_run_resumes_inside_the_task_and_ends_the_same(method, event, count, number, seconds, whole, tmp_path):
    folder = tmp_path / "run"
    given = json.dumps(options(method=method, checkpoint_seconds=seconds))
    command = [sys.executable, "-c", CHILD, str(folder), given, event, str(count), str(int(number))]
    child = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert child.returncode == (-9 if number == signal.SIGKILL else 1), child.stderr
    if number != signal.SIGKILL:
        assert "stopped; resume with: lifelabel train --resume" in child.stderr
    before = engine.RunFolder(folder).load_checkpoint()
    assert before["images"] < SMALL["train_images"]
    engine.resume(folder)
    expected = whole[method].folder
    for name in ("metrics.json", "history.jsonl"):
        assert (folder / name).read_bytes() == (expected / name).read_bytes()
    got, wanted = (torch.load(f / "checkpoint.pt", weights_only=True) for f in (folder, expected))
    torch.testing.assert_close(got["method"]["learner"], wanted["method"]["learner"], rtol=0, atol=0)
    assert not list(folder.glob("*.new"))


BAD = {"7.png": "corrupt", "13.png": "no such file", "12.png": "an empty file", "40.png": "corrupt"}


@pytest.fixture
def photographs(tmp_path):
    """Sixty images, each of another colour. Four cannot be read. Returns the options of a run, and the labels."""
    root, rng = tmp_path / "photos", np.random.default_rng(0)
    root.mkdir()
    labels = rng.random((60, 4)) < 0.5
    lines = ["image,split,a,b,c,d"]
    for i, row in enumerate(labels):
        lines.append(f"{i}.png,{'test' if i % 4 == 0 else 'train'}," + ",".join(map(str, row.astype(int))))
        Image.new("RGB", (9, 9), (4 * i, 0, 0)).save(root / f"{i}.png")
    for name, reason in BAD.items():
        (root / name).unlink() if reason == "no such file" else (root / name).write_bytes(
            b"\x89PNG\r\n" * ("c" in reason)
        )
    (tmp_path / "t.csv").write_text("\n".join(lines))
    stream_options = {"root": str(root), "tasks": 2, "order": "source", "protocol": "overlap"}
    more = {
        "backbone": "tiny",
        "weights": "none",
        "image_size": 32,
        "device": "cpu",
        "batch_size": 4,
        "augment": "none",
    }
    return {"stream": str(tmp_path / "t.csv"), "stream_options": stream_options, **more}, labels


def test_images_that_cannot_be_read_are_skipped_and_the_others_keep_their_labels(photographs, monkeypatch, tmp_path):
    given, labels = photographs
    method, notes = recorded(FineTuning, monkeypatch), []
    callback = Callback()
    callback.note = notes.append
    run = engine.train(tmp_path / "run", {**given, "method": "recorded"}, callback=callback)
    used = {0: [], 1: []}
    for task, images, visible in method.batches:
        rows = ((images[:, 0, 0, 0] * 0.25 + 0.5) * 255 / 4).round().int().tolist()
        used[task - 1] += rows
        assert np.array_equal(visible.bool().numpy(), labels[rows, 2 * task - 2 : 2 * task])
    for task, rows in used.items():
        readable = (i for i in range(60) if i % 4 and f"{i}.png" not in BAD)
        assert sorted(rows) == [i for i in readable if labels[i, 2 * task : 2 * task + 2].any()]
    skipped = [json.loads(line) for line in (tmp_path / "run/skipped.jsonl").read_text().splitlines()]
    assert {row["image"]: row["reason"] for row in skipped} == BAD
    assert {row["split"] for row in skipped if row["image"] in ("12.png", "40.png")} == {"test"}
    assert len(skipped) == len(BAD)  # each once, although both tasks have some of them
    assert run.environment["images_missing"] == 1
    assert run.environment["images_skipped"] == len(skipped) - 1
    assert any("13.png" in note for note in notes) and sum("are skipped" in note for note in notes) == 1


def test_a_killed_run_on_photographs_resumes_with_another_folder(photographs, tmp_path):
    given = {**photographs[0], "method": "fine-tuning", "checkpoint_seconds": 0}
    whole, folder = engine.train(tmp_path / "whole", given).folder, tmp_path / "run"
    child = {**given, "workers": 1}
    command = [sys.executable, "-c", CHILD, str(folder), json.dumps(child), "step", "14", str(int(signal.SIGKILL))]
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == -9
    moved = tmp_path / "moved"
    (tmp_path / "photos").rename(moved)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["stream_options"]["root"] = str(moved)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert engine.RunFolder(folder).load_checkpoint()["task"] == 1
    engine.resume(folder)
    for name in ("metrics.json", "history.jsonl", "skipped.jsonl"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
    used = next(i for i in range(60) if i % 4 and f"{i}.png" not in BAD and photographs[1][i].any())
    (moved / f"{used}.png").unlink()
    with pytest.raises(engine.UserError, match="when other images had a file"):
        engine.resume(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda i: i == 0, r"^test image 0.png: an empty file; repair it, or leave out --strict"),
        (lambda i: i % 4, "no image of task 1 could be read"),
        (lambda i: i % 4 == 0, "no test image could be read"),
    ],
)
def test_too_few_readable_images_are_one_line(damage, message, photographs, tmp_path):
    given, _ = photographs
    Image.new("RGB", (9, 9)).save(tmp_path / "photos/13.png")
    for i in range(60):
        (tmp_path / f"photos/{i}.png").write_bytes(b"") if damage(i) else Image.new("RGB", (9, 9)).save(
            tmp_path / f"photos/{i}.png"
        )
    with pytest.raises(engine.UserError, match=message):
        engine.train(tmp_path / "run", {**given, "method": "fine-tuning", "strict": "strict" in message})
    with pytest.raises(engine.UserError, match=message):  # also when it resumes
        engine.resume(tmp_path / "run")


def test_a_worker_that_is_killed_is_one_line(photographs, monkeypatch, tmp_path):
    loaders = []

    class Noted(engine.Loader):
        def __init__(self, *given, **more):
            super().__init__(*given, **more)
            loaders.append(self)

    class Kills(FineTuning):
        def observe(self, batch):
            os.kill(loaders[0].loader._iterator._workers[0].pid, signal.SIGKILL)
            time.sleep(0.5)
            return super().observe(batch)

    monkeypatch.setattr(engine, "Loader", Noted)
    monkeypatch.setitem(METHODS._items, "kills", Kills)
    with pytest.raises(engine.UserError, match=r"a process that decodes images was killed; .* --resume"):
        engine.train(tmp_path / "run", {**photographs[0], "method": "kills", "workers": 1})


def test_a_finished_run_is_not_run_again(whole):
    before = whole["agcn"].folder.joinpath("history.jsonl").read_bytes()
    again = engine.resume(whole["agcn"].folder)
    assert again.metrics == whole["agcn"].metrics
    assert whole["agcn"].folder.joinpath("history.jsonl").read_bytes() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_gpu_learns_what_the_cpu_learns(precision, tmp_path):
    stream_options = {"train_images": 1500, "test_images": 300}
    runs = {
        device: engine.train(
            tmp_path / device, stream_options=stream_options, method="agcn", device=device, precision=p
        )
        for device, p in (("cpu", "fp32"), ("cuda", precision))
    }
    cpu, gpu = (runs[device].metrics["final"]["mAP"] for device in ("cpu", "cuda"))
    assert abs(cpu - gpu) < 0.06
    assert runs["cuda"].environment["peak_device_memory_bytes"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_no_host_sync_from_pixels_to_weights_on_the_gpu(tmp_path):
    config = Config.make(options(method="agcn", device="cuda"))
    with engine.Run(config, engine.RunFolder(tmp_path), Callback()) as run:
        run.label_server.begin(0)
        view = run.label_server.view(0)
        run.method.begin_task(view.task.classes)
        for step, loaded in enumerate(run.loader.batches(run.jobs(view, np.arange(len(view)), 0, 2))):
            with no_waiting() if step else contextlib.nullcontext():
                run.method.observe(run.make_batch(view, np.arange(8), loaded))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("batch_size", 4, "another batch_size"),
        ("seed", 9, "another seed"),
        ("method_options", {"mix": 0.5}, r"another method\.mix than .*config.yaml has: 0.05$"),
        ("augment", "none", "another augment"),
        ("stream_options", {**SMALL, "seed": 1}, "another stream"),
        ("word_norm", 3.0, "other word vectors"),
    ],
)
def test_a_run_does_not_resume_as_another_one(name, value, message, whole, tmp_path):
    folder = shutil.copytree(whole["agcn"].folder, tmp_path / "run")
    values = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**values, name: value}))
    with pytest.raises(engine.UserError, match=message):
        engine.resume(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("stream"),
        lambda state: state.update(method={}),
        lambda state: state["method"].update(acm=None),
        lambda state: state.update(random_state=3),
        lambda state: state.update(history_bytes="x"),
    ],
)
def test_an_incomplete_checkpoint_is_one_line(change, whole, tmp_path):
    folder = shutil.copytree(whole["agcn"].folder, tmp_path / "run")
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    change(state)
    torch.save(state, folder / "checkpoint.pt")
    with pytest.raises(engine.UserError, match="does not fit"):
        engine.resume(folder)


@pytest.mark.parametrize(("method", "lr"), [("agcn", 1e19), ("fine-tuning", 1e30)])
def test_divergence_of_the_scores_leaves_the_last_good_checkpoint(method, lr, tmp_path):
    """With one step per task, the loss of the step that makes the weights useless is still finite."""
    first = {"lr": 1e-4, "backbone_lr": 1e-3, "later_backbone_lr": lr}
    given = options(method=method, batch_size=90, checkpoint_seconds=0, **first)
    with pytest.raises(Diverged, match=r"^task 2, step 1: the scores are not finite; stopped, the last good "):
        engine.train(tmp_path / "run", given)
    state = engine.RunFolder(tmp_path / "run").load_checkpoint()
    assert (state["task"], state["step"]) == (1, 0)
    values = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump({**values, "later_backbone_lr": 1e-4}))
    assert engine.resume(tmp_path / "run").metrics["finished"]


def test_a_state_that_is_not_finite_is_not_saved(monkeypatch, tmp_path):
    """Also if the scores are finite."""

    class Overflowing(FineTuning):
        def state_dict(self):
            value = float("inf") if len(self.tasks) == 2 else 1.0
            return {**super().state_dict(), "more": torch.tensor([1.0, value])}

    monkeypatch.setitem(METHODS._items, "overflowing", Overflowing)
    with pytest.raises(Diverged, match=r"^task 2, step 1: the weights are not finite; stopped, the last good "):
        engine.train(tmp_path / "run", options(method="overflowing", checkpoint_seconds=0))
    state = engine.RunFolder(tmp_path / "run").load_checkpoint()
    assert (state["task"], state["step"], state["method"]["more"].tolist()) == (1, 0, [1, 1])


def test_the_callback_ends_also_if_the_last_checkpoint_cannot_be_written(tmp_path, monkeypatch):
    def full(folder, state):
        raise OSError("no space left")

    callback, ended = Callback(), []
    callback.end = lambda: ended.append(True)
    monkeypatch.setattr(engine.RunFolder, "save_checkpoint", full)
    with pytest.raises(OSError, match="no space left"):
        engine.train(tmp_path / "run", options(method="fine-tuning"), callback=callback)
    assert ended == [True]
