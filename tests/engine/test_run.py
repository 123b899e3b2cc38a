"""A run: each image once, order by the seed, images that cannot be read."""

import contextlib
import csv
import gc
import os
import signal
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from engine.small_runs import BAD, ON_PHOTOGRAPHS, Notes, assert_same_files, options, read_lines
from PIL import Image
from support.methods import same
from support.no_waiting import no_waiting

import lifelabel
from lifelabel.config.config import Config
from lifelabel.engine import run as engine
from lifelabel.engine import setup, training
from lifelabel.engine.callback import Callback
from lifelabel.engine.training import TaskPasses, make_batch
from lifelabel.errors import HiddenLabel, Stopped
from lifelabel.methods import METHODS
from lifelabel.methods.agcn import AGCN
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.methods.multi_task import MultiTask
from lifelabel.model.model import load
from lifelabel.runs.finished import read_run
from lifelabel.streams import STREAMS, build, manifest


def stream():
    return STREAMS["scenes"].build(Config.make(options()).stream_options)


def recorded(base, monkeypatch):
    """A method that learns as `base` does and records its batches."""

    class Recorded(base):
        batches: list = []  # noqa: RUF012

        def observe(self, batch):
            self.batches.append((len(self.tasks), batch))
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
    for task, batch in method.batches:
        rows = [row[key] for key in keys(batch.images)]
        used += rows
        columns = slice(None) if base.joint else source.tasks[task - 1].columns
        assert np.array_equal(batch.labels.numpy().astype(bool), source.train.labels.dense()[rows, columns])
        assert base.joint or set(rows) <= set(source.train.rows[task - 1].tolist())
    assert sorted(used) == list(range(len(source.train)))


def test_a_batch_that_is_stored_has_only_the_labels_of_its_own_task(monkeypatch, tmp_path):
    """What a replay buffer can store: the labels that were visible when the image was learned, and their mask."""
    method = recorded(FineTuning, monkeypatch)
    engine.train(tmp_path / "run", options(method="recorded"))
    tasks = [task.classes for task in stream().tasks]
    for task, batch in method.batches:
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
    manifest.write(
        build("table", {"file": str(tmp_path / "t.csv"), "root": str(root), "tasks": 2, "labels": "task"}), out
    )
    method, notes = recorded(MultiTask, monkeypatch), Notes()
    given = {"stream": str(out), "stream_options": {"root": str(root)}, "method": "recorded"}
    engine.train(tmp_path / "run", {**given, **ON_PHOTOGRAPHS}, callback=notes)
    known, labels = (torch.cat([getattr(batch, name) for _, batch in method.batches]) for name in ("known", "labels"))
    assert known.shape == (40, 2) and (known.sum(1) == 1).all() and not labels[~known].any()
    assert any("learns from those, and is not an upper bound" in line for line in notes.lines)


def test_no_batch_is_alive_after_a_run(monkeypatch, tmp_path):
    alive = []

    class Recorded(AGCN):
        def observe(self, batch):
            alive.append(weakref.ref(batch.images))
            return super().observe(batch)

    monkeypatch.setitem(METHODS._items, "recorded", Recorded)
    engine.train(tmp_path / "run", options(method="recorded"))
    gc.collect()
    assert len(alive) >= 8 and all(reference() is None for reference in alive)


def test_the_same_seed_gives_the_same_run_and_another_one_another_order(monkeypatch, tmp_path):
    method = recorded(AGCN, monkeypatch)

    def run(seed, name):
        method.batches.clear()
        metrics = engine.train(tmp_path / name, options(method="recorded", seed=seed, augment="none")).metrics
        return [key for _, batch in method.batches for key in keys(batch.images)], metrics

    order, metrics = run(3, "a")
    assert run(3, "b") == (order, metrics)
    other_order, other_metrics = run(4, "c")
    assert other_order != order and other_metrics["final"]["mAP"] != metrics["final"]["mAP"]


def test_the_random_numbers_of_the_caller_are_not_changed(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    engine.train(tmp_path / "a", options(method="fine-tuning"))
    assert torch.equal(torch.rand(3), expected)


def test_the_final_figures(tmp_path):
    """tests/cli/test_train.py has the other figures of metrics.json."""
    final = engine.train(tmp_path / "a", options(method="agcn")).metrics["final"]
    by_class = [v for v in final["ap"].values() if v is not None]
    assert final["mAP"] == pytest.approx(np.mean(by_class)) == pytest.approx(final["conventions"]["mAP"])
    assert set(final["forgetting"]) == set(final["relative_forgetting"]) == {"mAP", "CF1", "OF1"}
    assert set(final["acm_error"]) == {"all", "intra", "old_new", "new_old"}


def test_the_upper_bound_has_one_task_and_has_no_forgetting(tmp_path):
    metrics = engine.train(tmp_path / "a", options(method="multi-task")).metrics
    assert len(metrics["per_task"]) == 1 and len(metrics["per_task"][0]["cumulative"]) == 3
    assert "forgetting" not in metrics["final"] and metrics["finished"]


def test_images_that_cannot_be_read_are_skipped_and_the_others_keep_their_labels(photographs, monkeypatch, tmp_path):
    given, labels = photographs
    method, notes = recorded(FineTuning, monkeypatch), Notes()
    run = engine.train(tmp_path / "run", {**given, "method": "recorded"}, callback=notes)
    used = {0: [], 1: []}
    for task, batch in method.batches:
        rows = ((batch.images[:, 0, 0, 0] * 0.25 + 0.5) * 255 / 4).round().int().tolist()
        used[task - 1] += rows
        assert np.array_equal(batch.labels.bool().numpy(), labels[rows, 2 * task - 2 : 2 * task])
    for task, rows in used.items():
        readable = [i for i in range(60) if i % 4 and f"{i}.png" not in BAD]
        shown = sorted(i for i in rows if labels[i].any())
        assert shown == [i for i in readable if labels[i, 2 * task : 2 * task + 2].any()]
    unlabelled = [i for i in readable if not labels[i].any()]  # each is a negative example of one task
    assert sorted(i for i in (*used[0], *used[1]) if not labels[i].any()) == unlabelled != []
    skipped = read_lines(tmp_path / "run/skipped.jsonl")
    assert {row["image"]: row["reason"] for row in skipped} == BAD
    assert {row["split"] for row in skipped if row["image"] in ("12.png", "40.png")} == {"test"}
    assert len(skipped) == len(BAD)  # each once, although both tasks have some of them
    assert run.environment["images_missing"] == 1
    assert run.environment["images_skipped"] == len(skipped) - 1
    assert run.metrics["skipped"] == {"train": 1, "test": 2}
    assert [record["skipped"]["test"] for record in run.metrics["per_task"]] == [2, 2]
    assert any("13.png" in line for line in notes.lines) and sum("are skipped" in line for line in notes.lines) == 1


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

    class Noted(setup.Loader):
        def __init__(self, *given, **more):
            super().__init__(*given, **more)
            loaders.append(self)

    class Kills(FineTuning):
        def observe(self, batch):
            loaders[0].workers.children[0][0].kill()
            time.sleep(0.5)
            return super().observe(batch)

    monkeypatch.setattr(setup, "Loader", Noted)
    monkeypatch.setitem(METHODS._items, "kills", Kills)
    with pytest.raises(engine.UserError, match=r"a process that decodes images was killed; .* --resume"):
        engine.train(tmp_path / "run", {**photographs[0], "method": "kills", "workers": 1})


class StopProcess(Callback):
    """Stops a child process during the first task, and sends a stop request a moment later."""

    def __init__(self, monkeypatch, find, number):
        self.runs, self.find, self.number, self.stopped = [], find, number, None
        enter = engine.Run.__enter__
        monkeypatch.setattr(engine.Run, "__enter__", lambda run: self.runs.append(run) or enter(run))

    def steps(self, task, images, losses):
        if self.stopped is None:
            self.stopped = self.find(self.runs[0])
            os.kill(self.stopped.pid, signal.SIGSTOP)
            threading.Timer(0.3, os.kill, (os.getpid(), self.number)).start()


@pytest.mark.parametrize(
    "find",
    [lambda run: run.loader.workers.children[0][0], lambda run: run.label_server.process],
    ids=["worker", "label process"],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_does_not_wait_for_a_process_that_does_not_answer(find, number, tmp_path, monkeypatch):
    """The step before is in the checkpoint, and the run resumes to the same result."""
    monkeypatch.setattr(training, "_INTERVAL", 1)
    given = options(method="fine-tuning", checkpoint_seconds=1000, batch_size=3)
    with monkeypatch.context() as patch:
        stop = StopProcess(patch, find, number)
        with pytest.raises(Stopped, match=r"^stopped; resume with: lifelabel train --resume "):
            engine.train(tmp_path / "run", given, callback=stop)
    assert not stop.stopped.is_alive()
    assert not engine.RunFolder(tmp_path / "run").is_finished
    resumed, whole = engine.resume(tmp_path / "run").folder, engine.train(tmp_path / "whole", given).folder
    assert_same_files(resumed, whole, "metrics.json", "history.jsonl", "model/training-images.bin")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_gpu_learns_what_the_cpu_learns(precision, tmp_path):
    given = {"stream_options": {"train_images": 1500, "test_images": 300}, "method": "agcn"}
    runs = {
        device: engine.train(tmp_path / device, given, device=device, precision=p)
        for device, p in (("cpu", "fp32"), ("cuda", precision))
    }
    cpu, gpu = (runs[device].metrics["final"]["mAP"] for device in ("cpu", "cuda"))
    assert abs(cpu - gpu) < 0.06
    assert runs["cuda"].environment["peak_device_memory_bytes"] > 0


@pytest.mark.gpu
def test_no_host_sync_from_pixels_to_weights_on_the_gpu(tmp_path):
    config = Config.make(options(method="agcn", device="cuda"))
    with engine.Run(config, engine.RunFolder(tmp_path), Callback()) as run:
        run.label_server.begin(0)
        view = run.label_server.view(0)
        run.method.begin_task(view.task.classes)
        passes = TaskPasses(config, view, run.info.train, 0)
        for step, loaded in zip(range(2), run.loader.batches(passes.jobs(0, run.group)), strict=False):
            with no_waiting() if step else contextlib.nullcontext():
                run.method.observe(make_batch(run.method, view, passes.batch(step), loaded, first_pass=True))


def test_a_run_leaves_a_model_after_its_last_task_or_after_every_task(tmp_path):
    whole = engine.train(tmp_path / "run", options(method="fine-tuning", keep_tasks=True))
    folders = ["model", "model-task-1", "model-task-2", "model-task-3"]
    assert sorted(path.name for path in (tmp_path / "run").glob("model*")) == folders
    sizes = [len(load(tmp_path / "run" / name).classes) for name in folders]
    assert sizes == [8, *np.cumsum([len(task) for task in whole.metrics["tasks"]])]
    last = load(tmp_path / "run")
    assert last.info.training["final"]["mAP"] == whole.metrics["final"]["mAP"]
    engine.train(tmp_path / "run", options(method="fine-tuning"), overwrite=True)
    assert [path.name for path in (tmp_path / "run").glob("model*")] == ["model"]


def test_a_plug_in_whose_network_does_not_fit_leaves_no_model(monkeypatch, tmp_path):
    class Doubled(FineTuning):
        summary = "logits of its own, and the inherited network"

        def logits(self, features, num_classes=None):
            return 3 - 2 * super().logits(features, num_classes)

    monkeypatch.setitem(METHODS._items, "doubled", Doubled)
    notes = Notes()
    engine.train(tmp_path / "run", options(method="doubled"), callback=notes)
    assert not (tmp_path / "run" / "model").exists()
    assert any("no model folder is written" in line for line in notes.lines)


def test_the_matrix_of_a_joint_run_has_the_blocks_of_the_tasks(tmp_path):
    options = {"train_images": 40, "test_images": 40}
    done = engine.train(tmp_path / "run", method="ml-gcn", tasks=2, device="cpu", stream_options=options)
    assert read_run(done.folder).matrices["task_1"].shape == (10, 10)
    assert {"intra", "old_new", "new_old"} <= done.metrics["final"]["acm_error"].keys()


# Known labels of earlier tasks, and unknown ones


@pytest.fixture
def table(tmp_path):
    """A function that writes a table of two tasks. In images of task 2, `old` gives the cells of the old classes."""
    rng = np.random.default_rng(0)
    labels = rng.random((40, 4)) < 0.5
    for i in range(40):
        Image.new("RGB", (32, 32), (6 * i, 0, 0)).save(tmp_path / f"{i:02}.png")

    def write(old):
        rows = [["image", "task", "split", *"abcd"]]
        for i, row in enumerate(labels.astype(int).tolist()):
            task = i % 2
            row[task * 2] = 1
            cells = [*row[:2], "", ""] if task == 0 else [old(value) for value in row[:2]] + row[2:]
            rows.append([f"{i:02}.png", task + 1, "train" if i % 5 else "test", *cells])
        with open(tmp_path / "t.csv", "w", newline="") as file:
            csv.writer(file).writerows(rows)
        return str(tmp_path / "t.csv")

    return write


def train_on_table(table, out, labels):
    options = {"labels": labels, "order": "alphabetical"}
    given = {**ON_PHOTOGRAPHS, "batch_size": 4, "method": "er"}
    result = lifelabel.train(out, stream=table, stream_options=options, save_scores=True, **given)
    return result.metrics, torch.load(out / "checkpoint.pt", weights_only=True)["method"]


def test_with_nothing_known_beyond_the_task_all_bits_stay_the_same(table, tmp_path):
    path = table(lambda value: "")
    task, known = (train_on_table(path, tmp_path / labels, labels) for labels in ("task", "known"))
    assert known[0] == task[0] and same(known[1], task[1])


def test_known_labels_change_what_is_learned(table, tmp_path):
    path = table(lambda value: value)
    task, known = (train_on_table(path, tmp_path / labels, labels) for labels in ("task", "known"))
    assert not same(known[1], task[1])


def test_unknown_labels_of_test_images_do_not_count(table, tmp_path):
    """The AP of a class is that of the images in which it is known."""
    metrics, _ = train_on_table(table(lambda value: ""), tmp_path / "run", "known")
    model = lifelabel.load(tmp_path / "run")
    rows = [row for row in csv.DictReader(open(tmp_path / "t.csv")) if row["split"] == "test"]
    pixels = [torch.from_numpy(np.array(Image.open(tmp_path / row["image"]))) for row in rows]
    logits = model.logits(torch.stack(pixels)).numpy()
    for k, name in enumerate("abcd"):
        is_known = np.array([row[name] != "" for row in rows])
        assert 0 < is_known.sum() < len(rows)
        truth = np.array([row[name] == "1" for row in rows])[is_known]
        expected = lifelabel.metrics.average_precision(logits[is_known, k : k + 1], truth[:, None])
        assert metrics["final"]["ap"][name] == pytest.approx(float(expected), abs=1e-6)
    with np.load(tmp_path / "run" / "scores.npz") as saved:  # `lifelabel metrics` gives the figures of the run
        scored = lifelabel.metrics.headline(1 / (1 + np.exp(-saved["logits"])), saved["labels"])
    assert scored["OF1"] == pytest.approx(metrics["final"]["OF1"])
