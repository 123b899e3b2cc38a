"""`lifelabel tune`: real searches with a few trials, the preset and its command, and mistakes."""

import csv
import json
import shlex
import signal

import pytest
import yaml
from support.run_files import SendSignal

from lifelabel.config import presets
from lifelabel.config.config import Config
from lifelabel.engine.run import resume, train
from lifelabel.errors import Stopped
from lifelabel.runs.folder import RunFolder
from lifelabel.search import tuner as tune
from lifelabel.search.planned_run import Outcome
from lifelabel.streams import build
from lifelabel.streams.subsets import Part, part_of

STREAM = {"train_images": 120, "test_images": 20, "size": 32}
SMALL = ("--device", "cpu", *(f"--set=stream.{name}={value}" for name, value in STREAM.items()))


def trials_of(folder):
    with open(folder / "trials.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def snapshot(folder):
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def options_of(folder):
    values = yaml.safe_load((folder / "preset.yaml").read_text(encoding="utf-8"))
    return {**{k: v for k, v in values.items() if k != "method_options"}, **values.get("method_options", {})}


def write_results(commands):
    """Replaces `run_all`: the score of a run is a random number. The commands that continue are collected."""

    def run_all(planned, *, display, command, backend):
        commands.append(command)
        for plan in planned:
            plan.folder.mkdir(parents=True)
            score = int(plan.folder.name.split("-")[1], 16) / 16**8  # the folder name has a hash of the options
            (plan.folder / "metrics.json").write_text(
                json.dumps({"finished": True, "final": {"mAP": score}, "per_task": []})
            )
            machine = {"date": "2026-01-02", "device": "a CPU", "commit": "c0ffee", "lifelabel": "1", "seconds": 2.5}
            (plan.folder / "environment.json").write_text(json.dumps(machine))
        return [Outcome(plan, new=True) for plan in planned]

    return run_all


@pytest.fixture(scope="module")
def searched(lifelabel, tmp_path_factory):
    """Three trials of fine-tuning with the real command: (process, folder)."""
    folder = tmp_path_factory.mktemp("tune") / "fine-tuning"
    done = lifelabel("tune", "--method", "fine-tuning", *SMALL, "--trials", "3", "--out", folder)
    assert done.returncode == 0, done.stderr
    return done, folder


def test_trials_train_on_the_first_tasks_and_score_training_images(searched):
    _, folder = searched
    rows = trials_of(folder)
    assert [row["trial"] for row in rows] == ["1", "2", "3"]
    assert rows[0]["changed"] == "start" and all(row["changed"] == f"lr={row['lr']}" for row in rows[1:])
    part = part_of(build("scenes", STREAM), Part(0, 3, 0.2))
    folders = sorted((folder / "trials").iterdir())
    assert [path.name for path in folders] == [row["folders"] for row in rows]
    for row, path in zip(rows, folders, strict=True):
        run = Config.make(yaml.safe_load((path / "config.yaml").read_text()))
        assert (run.first_tasks, run.hold_out, run.seed, run.method) == (3, 0.2, 0, "fine-tuning")
        assert run.lr == float(row["lr"]) and run.batch_norm == row["batch_norm"]
        environment = json.loads((path / "environment.json").read_text())
        assert environment["stream_fingerprint"] == part.fingerprint
        metrics = json.loads((path / "metrics.json").read_text())
        assert metrics["classes"] == list(part.classes) and len(metrics["per_task"]) == 3
        assert float(row["mAP"]) == pytest.approx(100 * metrics["final"]["mAP"], abs=1e-4)
        assert float(row["seconds"]) == pytest.approx(environment["seconds"], abs=0.06)
        assert not (path / "checkpoint.pt").exists()
    assert len({row["lr"] for row in rows}) == 3


def test_the_preset_has_the_best_trial_and_its_origin(searched):
    done, folder = searched
    best = max(trials_of(folder), key=lambda row: float(row["mAP"]))
    text = (folder / "preset.yaml").read_text(encoding="utf-8")
    reached = f"{float(best['mAP']):.2f} mAP on held-out training images of the first 3 tasks (3 trials, seeds 0)"
    origin = presets.parse_origin(text)
    assert origin.reached == reached
    assert origin.command == (
        f"lifelabel tune --method fine-tuning --stream scenes --device cpu --trials 3 --first-tasks 3 --hold-out 0.2 "
        f"--seeds 0 --out {folder} --set stream.train_images=120 --set stream.test_images=20 --set stream.size=32"
    )
    environment = json.loads((folder / "trials" / best["folders"] / "environment.json").read_text())
    for fact in ("date", "device", "commit"):
        assert str(environment[fact]) in text
    values = yaml.safe_load(text)
    assert list(values) == ["method", "lr", "backbone_lr", "later_backbone_lr", "batch_norm"]
    assert {name: str(values[name]) for name in ("method", "batch_norm")} == {
        "method": "fine-tuning",
        "batch_norm": best["batch_norm"],
    }
    assert all(values[name] == float(best[name]) for name in ("lr", "backbone_lr", "later_backbone_lr"))
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"fine-tuning: lr {best['lr']}, ") and f": {reached} → {folder / 'preset.yaml'}" in line


def test_the_preset_can_be_given_to_train_and_can_be_shipped(searched, main, monkeypatch):
    _, folder = searched
    chosen = options_of(folder)
    printed = main("train", "--config", folder / "preset.yaml", "--print-config")
    config = yaml.safe_load(printed.stdout)
    assert {name: config[name] for name in chosen} == chosen
    assert config["first_tasks"] is None and config["hold_out"] == 0
    text = (folder / "preset.yaml").read_text(encoding="utf-8")
    monkeypatch.setattr(presets, "_text", lambda kind, method: text)
    shipped = Config.make({"method": "fine-tuning"}).to_dict()
    assert {name: shipped[name] for name in chosen} == chosen


def test_the_command_of_the_preset_repeats_nothing(searched, main):
    _, folder = searched
    before = snapshot(folder / "trials")
    preset = (folder / "preset.yaml").read_bytes()
    _, *words = shlex.split(presets.parse_origin(preset.decode()).command)
    done = main(*words)
    assert (done.returncode, done.stdout) == (0, searched[0].stdout)
    assert snapshot(folder / "trials") == before and (folder / "preset.yaml").read_bytes() == preset


def test_if_all_trials_diverge_the_reason_is_one_line(refused, tmp_path):
    """tests/search has searches in which some trials diverge."""
    (tmp_path / "start.yaml").write_text("lr: 1.0e+30\n")
    given = ("--config", tmp_path / "start.yaml", "--trials", "1", "--out", tmp_path / "t", "-q")
    line = refused("tune", "--method", "fine-tuning", *SMALL, *given)
    assert line.startswith("all trials (1) diverged") and "task 1" in line


def test_a_search_on_a_proxy_stream(main, output, tmp_path):
    given = ("tune", "--method", "fine-tuning", *SMALL, "--proxy", "--trials", "2", "-q", "--out", tmp_path)
    text = output(*given, "--proxy-images", "100")
    part = part_of(build("scenes", STREAM), Part(hold_out=0.2, proxy=True, proxy_images=100))
    assert len(part.tasks) == 5 and not set(part.classes) & set(build("scenes", STREAM).classes)
    rows = trials_of(tmp_path)
    for row in rows:
        path = tmp_path / "trials" / row["folders"]
        run = Config.make(yaml.safe_load((path / "config.yaml").read_text()))
        assert (run.proxy, run.proxy_images, run.first_tasks, run.hold_out) == (True, 100, None, 0.2)
        assert json.loads((path / "environment.json").read_text())["stream_fingerprint"] == part.fingerprint
        metrics = json.loads((path / "metrics.json").read_text())
        assert metrics["classes"] == list(part.classes) and len(metrics["per_task"]) == 5
    best = max(float(row["mAP"]) for row in rows)
    origin = presets.parse_origin((tmp_path / "preset.yaml").read_text(encoding="utf-8"))
    assert origin.reached == (
        f"{best:.2f} mAP on held-out images of a proxy stream (5 tasks of other classes) (2 trials, seeds 0)"
    )
    assert "--proxy --proxy-images 100" in origin.command and "--first-tasks" not in origin.command
    before = snapshot(tmp_path / "trials")
    assert main(*shlex.split(origin.command)[1:]).stdout == text
    assert snapshot(tmp_path / "trials") == before


def test_a_stopped_trial_on_a_proxy_stream_resumes_exactly(tmp_path):
    options = {"method": "fine-tuning", "device": "cpu", "proxy": True, "hold_out": 0.2, "stream_options": STREAM}
    whole = train(tmp_path / "whole", options)
    with pytest.raises(Stopped):
        train(tmp_path / "parts", options, callback=SendSignal(2, signal.SIGTERM))
    assert resume(tmp_path / "parts").metrics == whole.metrics
    names = ("metrics.json", "history.jsonl", "config.yaml")
    assert all((tmp_path / "parts" / n).read_bytes() == (tmp_path / "whole" / n).read_bytes() for n in names)


def test_several_methods_have_a_folder_each(main, output, monkeypatch, tmp_path):
    commands = []
    monkeypatch.setattr(tune, "run_all", write_results(commands))
    given = ("--trials", "2", "--set", "stream.tasks=4", "--jobs", "3", "--out", tmp_path / "my runs")
    text = output("tune", "--method", "fine-tuning, multi-task", *given)
    assert [line.split(":")[0] for line in text.splitlines()] == ["fine-tuning", "multi-task"]
    assert shlex.split(commands[0])[:4] == ["lifelabel", "tune", "--method", "fine-tuning, multi-task"]
    for method in ("fine-tuning", "multi-task"):
        folder = tmp_path / "my runs" / method
        words = shlex.split(presets.parse_origin((folder / "preset.yaml").read_text()).command)
        assert words[words.index("--method") + 1] == method and words[words.index("--out") + 1] == str(folder)
        assert words[words.index("--jobs") + 1] == "3"
        before = snapshot(folder)
        assert main(*words[1:]).returncode == 0  # for one method, it is the same search
        assert {name: data for name, (data, _) in snapshot(folder).items()} == {n: d for n, (d, _) in before.items()}


def test_options_given_by_flags_or_set_are_not_searched(main, monkeypatch, tmp_path):
    monkeypatch.setattr(tune, "run_all", write_results([]))
    given = ("--lr", "0.007", "--set", "batch_norm=frozen", "--strict", "--batch-size", "4", "--trials", "30")
    assert main("tune", "--method", "fine-tuning", *given, "--out", tmp_path).returncode == 0
    rows = trials_of(tmp_path)
    assert {(row["lr"], row["batch_norm"]) for row in rows} == {("0.007", "frozen")}
    assert len({row["backbone_lr"] for row in rows}) == 3
    preset = (tmp_path / "preset.yaml").read_text()
    assert options_of(tmp_path)["lr"] == 0.007 and "batch_size" not in options_of(tmp_path)
    words = shlex.split(presets.parse_origin(preset).command)
    assert main(*words[1:]).returncode == 0  # every flag of the command is valid
    assert (tmp_path / "preset.yaml").read_text() == preset
    assert "--strict" in words and words[words.index("--batch-size") + 1] == "4"


def test_a_folder_in_use(refused, tmp_path):
    with RunFolder(tmp_path).locked():
        assert "in use by another process" in refused("tune", "--method", "lwf", "--out", tmp_path)
    (tmp_path / "file").touch()
    assert "cannot write to" in refused("tune", "--method", "lwf", "--out", tmp_path / "file")
