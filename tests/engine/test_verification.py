"""Verification of a finished run: every change of its folder or of its images is found."""

import csv
import hashlib
import shutil

import numpy as np
import pytest
from engine.small_runs import edit_config
from PIL import Image
from report.run_folders import edit_json
from support.models import change_info
from support.run_files import read_json, snapshot

import lifelabel
from lifelabel.engine.checkpoint_file import load_checkpoint, save_checkpoint
from lifelabel.engine.verification import FAILED, NOT_CHECKED, OK
from lifelabel.errors import UserError
from lifelabel.methods import METHODS
from lifelabel.runs.folder import RunFolder
from lifelabel.runs.records import summarise
from lifelabel.streams.stream import classes_to_tasks

COMMON = {"backbone": "tiny", "weights": "none", "image_size": 32, "batch_size": 4, "device": "cpu", "pictures": 0}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Thirty photographs of four classes in two tasks; three.csv has a third task."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    rows = []
    for i in range(45):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).resize((40, 40)).save(folder / f"{i}.png")
        labels = {"abcdef"[2 * (i // 15) + k] for k in rng.integers(0, 2, 2)}
        rows.append([f"{i}.png", ";".join(sorted(labels)), "test" if i % 3 == 0 else "train", i // 15 + 1])
    for name, part in (("two", rows[:30]), ("three", rows[30:])):
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([["image", "labels", "split", "task"], *part])
    return folder


def train(photos, out, method="fine-tuning", **more):
    return lifelabel.train(out, method=method, stream=str(photos / "two.csv"), **{**COMMON, **more}).folder


@pytest.fixture(scope="module")
def runs(photos, tmp_path_factory):
    """Two runs, with the seeds 0 and 1."""
    folder = tmp_path_factory.mktemp("runs")
    return [train(photos, folder / str(seed), seed=seed) for seed in (0, 1)]


@pytest.fixture
def copy(runs, tmp_path):
    """A copy of the run with seed 0, which the test may change."""
    return shutil.copytree(runs[0], tmp_path / "run")


def states(verification):
    return {check.name: check.state for check in verification.checks}


def failed(verification):
    return {check.name: check.found for check in verification.checks if check.state == FAILED}


def edit_state(folder, **values):
    """Write the checkpoint again, with its own digest."""
    save_checkpoint(RunFolder(folder), {**load_checkpoint(RunFolder(folder)), **values})


def edit_figure(folder):
    final = read_json(folder / "metrics.json")["final"]
    edit_json(folder / "metrics.json", final={**final, "mAP": final["mAP"] + 0.0001})


def edit_figure_everywhere(folder):
    """Change a figure in all files, with all digests: only the test images show it."""

    def raised(final):
        return {**final, "mAP": final["mAP"] + 0.01}

    metrics, training = read_json(folder / "metrics.json"), read_json(folder / "model/model.json")["training"]
    state = load_checkpoint(RunFolder(folder))
    for records in (metrics["per_task"], state["records"]):
        records[-1]["seen"] = raised(records[-1]["seen"])
        records[-1]["cumulative"][-1] = raised(records[-1]["cumulative"][-1])
    tasks = classes_to_tasks(tuple(metrics["classes"]), [len(task) for task in metrics["tasks"]])
    metrics |= summarise(state["records"], tasks)
    RunFolder(folder).write_json("metrics.json", metrics)
    change_info(folder / "model", training={**training, "final": metrics["final"]})
    sha256 = read_json(folder / "environment.json")["sha256"]
    for name in ("metrics.json", "model/model.json"):
        sha256[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    edit_json(folder / "environment.json", sha256=sha256)
    state["digests"]["environment.json"] = hashlib.sha256((folder / "environment.json").read_bytes()).hexdigest()
    edit_state(folder, records=state["records"], digests=state["digests"])


def add_line(folder):
    lines = (folder / "history.jsonl").read_text().splitlines(keepends=True)
    (folder / "history.jsonl").write_text("".join([*lines, lines[-1]]))


def forget_digests(folder):
    environment = read_json(folder / "environment.json")
    del environment["sha256"]
    RunFolder(folder).write_json("environment.json", environment)


def edit(name, **values):
    return lambda folder: edit_json(folder / name, **values)


def put(name, text):
    return lambda folder: (folder / name).write_text(text)


def flip_bit(name, position=-5):
    def flip(folder):
        data = bytearray((folder / name).read_bytes())
        data[position] ^= 1
        (folder / name).write_bytes(data)

    return flip


OTHER = ["a", "b", "c", "x"]
TAMPERINGS = {
    "a figure": (edit_figure, {"files", "metrics.json"}),
    "a figure in all files": (edit_figure_everywhere, {"scores"}),
    "metrics.json is not JSON": (put("metrics.json", "{"), {"files", "metrics.json"}),
    "the seed in metrics.json": (edit("metrics.json", seed=7), {"files", "configuration"}),
    "a class": (edit("metrics.json", classes=OTHER), {"files", "stream", "metrics.json", "model"}),
    "a bit of the model": (flip_bit("model/model.safetensors"), {"files", "model"}),
    "the name of a class of the model": (edit("model/model.json", classes=OTHER), {"files", "model"}),
    "thresholds not of calibrate": (lambda f: change_info(f / "model", thresholds=[0.1] * 4, seed=1), {"files"}),
    "the model card": (put("model/README.md", "the best model"), {"files"}),
    "no model": (lambda f: shutil.rmtree(f / "model"), {"files"}),
    "an option": (lambda f: edit_config(f, lr=0.5), {"files", "configuration"}),
    "the batch size": (lambda f: edit_config(f, batch_size=5), {"files", "configuration", "history.jsonl"}),
    "a config that is not YAML": (put("config.yaml", "a: ["), {"files", "configuration"}),
    "a line of the history twice": (add_line, {"files", "history.jsonl"}),
    "a history that is cut": (put("history.jsonl", ""), {"files", "history.jsonl"}),
    "the seconds": (edit("environment.json", seconds=1), {"environment.json"}),
    "the digests": (forget_digests, {"environment.json", "files"}),
    "the details": (flip_bit("details/task-2.npz"), {"files"}),
    "a file that the run did not write": (lambda f: shutil.copy(f / "details/task-2.npz", f / "acm.npz"), {"files"}),
    "a checkpoint that is cut": (put("checkpoint.pt", "PK"), {"checkpoint.pt"}),
    "a bit of the checkpoint before": (flip_bit("checkpoint-previous.pt"), {"checkpoint-previous.pt"}),
    "a checkpoint of another position": (lambda f: edit_state(f, task=1), {"checkpoint.pt"}),
}
"""What is changed, and the checks that must fail because of it."""


@pytest.mark.parametrize("what", TAMPERINGS)
def test_a_change_of_the_folder_is_found(copy, what):
    change, wanted = TAMPERINGS[what]
    change(copy)
    assert failed(lifelabel.verify(copy, score="scores" in wanted)).keys() == wanted


def test_the_checkpoint_of_another_seed_is_found(runs, copy):
    shutil.copy(runs[1] / "checkpoint.pt", copy / "checkpoint.pt")
    found = failed(lifelabel.verify(copy, score=False))
    assert found.keys() == {"environment.json", "configuration", "metrics.json"}
    assert found["configuration"] == "seed: config.yaml has 0, checkpoint.pt has 1"


@pytest.fixture
def moved(photos, tmp_path):
    """A copy of the images and of the table, which the test may change."""
    return shutil.copytree(photos, tmp_path / "moved")


def verify_moved(run, moved, **more):
    return lifelabel.verify(run, {"file": str(moved / "two.csv")}, root=moved, **more)


def test_an_unchanged_run_is_verified_where_it_lies_now_and_not_changed(copy, moved):
    before = snapshot(copy)
    seen, progress = [], []
    verification = verify_moved(copy, moved, on_check=seen.append, progress=lambda *at: progress.append(at))
    assert set(states(verification).values()) == {OK} and verification.ok, verification
    assert tuple(seen) == verification.checks and progress[-1] == (10, 10)
    assert snapshot(copy) == before
    figure = read_json(copy / "metrics.json")["final"]["mAP"]
    assert verification.checks[-1].found.startswith(
        f"10 test images by the model: mAP {100 * figure:.4f} %, metrics.json {100 * figure:.4f} %; largest difference"
    )


def test_a_change_of_the_table_is_found(runs, moved):
    text = (moved / "two.csv").read_text()
    (moved / "two.csv").write_text(text.replace("1.png,a", "1.png,b", 1))
    assert "SHA-256 of the stream" in failed(verify_moved(runs[0], moved, score=False))["stream"]


def test_images_that_are_missing_are_found(runs, moved):
    (moved / "1.png").unlink()
    found = failed(verify_moved(runs[0], moved, score=False))
    assert "other images have a file" in found["stream"] and "images by task" in found["images"]


def test_other_test_images_of_the_same_names_are_found(runs, moved):
    for i in range(0, 30, 3):
        Image.new("RGB", (40, 40), (8 * i, 0, 0)).save(moved / f"{i}.png")
    found = failed(verify_moved(runs[0], moved))
    assert found.keys() == {"scores"} and "tolerance 0.001" in found["scores"]


def test_a_test_image_that_cannot_be_read_any_more_is_found(runs, moved):
    (moved / "3.png").write_bytes(b"")
    assert failed(verify_moved(runs[0], moved)) == {
        "scores": "number of test images that cannot be read: now has 1, during the run has 0"
    }


def test_a_run_that_is_calibrated_is_verified(copy, photos, main):
    assert main("calibrate", copy, photos / "two.csv", "--rows", "test", "--device", "cpu").returncode == 0
    verification = lifelabel.verify(copy, score=False)
    assert verification.ok
    files = next(check.found for check in verification.checks if check.name == "files")
    assert files.endswith("; the model was calibrated after the run")
    change_info(copy / "model", label="better")
    assert failed(lifelabel.verify(copy, score=False)).keys() == {"files"}


def test_a_run_without_checkpoints(copy):
    for path in copy.glob("checkpoint*.pt"):
        path.unlink()
    found = lifelabel.verify(copy, score=False)
    assert found.ok and [name for name, state in states(found).items() if state == NOT_CHECKED] == [
        "checkpoint.pt", "checkpoint-previous.pt", "environment.json",
    ]  # fmt: skip
    edit_figure(copy)
    assert failed(lifelabel.verify(copy, score=False)).keys() == {"files", "metrics.json"}


@pytest.mark.parametrize("method", ["weighted-ridge", "multi-task"])
def test_a_run_that_extends_another_one_is_verified(photos, tmp_path, method):
    options = {"warm_up": 4} if method == "weighted-ridge" else {}
    train(photos, tmp_path / "two", method, method_options=options)
    lifelabel.extend(tmp_path / "two", photos / "three.csv", tmp_path / "three")
    for name in ("two", "three"):
        verification = lifelabel.verify(tmp_path / name)
        assert set(states(verification).values()) == {OK}, verification


def test_a_method_without_a_model_is_scored_from_its_checkpoint(photos, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(METHODS["fine-tuning"], "network", lambda method: None)
        run = train(photos, tmp_path / "run")
    verification = lifelabel.verify(run)
    assert verification.ok and states(verification)["model"] == NOT_CHECKED
    assert "by the method of checkpoint.pt" in verification.checks[-1].found
    assert "largest difference of 24 figures 0, tolerance 0.001" in verification.checks[-1].found
    (run / "checkpoint.pt").unlink()
    assert states(lifelabel.verify(run))["scores"] == NOT_CHECKED


def test_mistakes_of_the_user(copy, tmp_path):
    for folder, options, line in (
        (tmp_path, {}, "is not a run folder"),
        (copy, {"root": tmp_path / "nowhere"}, "there is no"),
        (copy, {"stream_options": {"tasks": 3}}, "stream.tasks is not a path of stream table"),
        (copy, {"device": "gpu"}, "unknown device 'gpu'"),
    ):
        with pytest.raises(UserError, match=line):
            lifelabel.verify(folder, **options)
    edit_json(copy / "metrics.json", finished=False)
    with pytest.raises(UserError, match=r"is not finished: continue it with lifelabel train --resume"):
        lifelabel.verify(copy)
