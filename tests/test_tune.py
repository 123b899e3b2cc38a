"""`lifelabel tune`: real searches with a few trials, and the search itself on made-up scores against a plain loop."""

import csv
import hashlib
import json
import shlex

import pytest
import yaml

from lifelabel import presets, tune
from lifelabel.config import Config
from lifelabel.methods import METHODS
from lifelabel.presets import KINDS
from lifelabel.runfolder import RunFolder
from lifelabel.runner import Outcome
from lifelabel.streams import build
from lifelabel.streams.parts import Part, part_of

SMALL = (
    "--device",
    "cpu",
    "--set",
    "stream.train_images=120",
    "--set",
    "stream.test_images=20",
    "--set",
    "stream.size=32",
)
STREAM = {"train_images": 120, "test_images": 20, "size": 32}


def trials_of(folder):
    with open(folder / "trials.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def snapshot(folder):
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def options_of(folder):
    values = yaml.safe_load((folder / "preset.yaml").read_text(encoding="utf-8"))
    return {**{k: v for k, v in values.items() if k != "method_options"}, **values.get("method_options", {})}


# Real searches


@pytest.fixture(scope="module")
def searched(lifelabel, tmp_path_factory):
    """Three trials of fine-tuning, by the real command: what it did, and its folder."""
    folder = tmp_path_factory.mktemp("tune") / "er"
    done = lifelabel("tune", "--method", "fine-tuning", *SMALL, "--trials", "3", "--out", folder)
    assert done.returncode == 0, done.stderr
    return done, folder


def test_trials_are_runs_on_the_first_tasks_scored_on_training_images(searched):
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


def test_the_preset_holds_the_best_trial_and_where_it_comes_from(searched):
    done, folder = searched
    best = max(trials_of(folder), key=lambda row: float(row["mAP"]))
    text = (folder / "preset.yaml").read_text(encoding="utf-8")
    reached = f"{float(best['mAP']):.2f} mAP on held-out training images of the first 3 tasks (3 trials, seeds 0)"
    told = presets.story(text)
    assert told.reached == reached
    assert told.command == (
        f"lifelabel tune --method fine-tuning --stream scenes --device cpu --trials 3 --tasks 3 --hold-out 0.2 "
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


def test_the_preset_works_with_train_and_among_those_that_are_shipped(searched, main, monkeypatch):
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


def test_a_search_does_not_begin_with_the_preset_that_it_made(tmp_path, monkeypatch):
    made_up = "# command: x\n# reached: y\nmethod: er\nlr: 0.0123\nmethod_options:\n  replay_weight: 0.77\n"
    monkeypatch.setattr(presets, "_text", lambda kind, method: made_up)
    asked = tune.Search("er", {"stream": "scenes"}, {}, tmp_path)
    start = tune.Descent(asked, RunFolder(tmp_path), None, None).start()
    assert start["lr"] == Config.make({"method": "er"}, with_preset=False).lr != 0.0123
    assert start["replay_weight"] == 1.0


def test_the_command_of_the_preset_redoes_nothing(searched, main):
    _, folder = searched
    before = snapshot(folder / "trials")
    preset = (folder / "preset.yaml").read_bytes()
    _, *words = shlex.split(presets.story(preset.decode()).command)
    done = main(*words)
    assert (done.returncode, done.stdout) == (0, searched[0].stdout)
    assert snapshot(folder / "trials") == before and (folder / "preset.yaml").read_bytes() == preset


def test_a_trial_that_diverges_counts_and_is_not_tried_again(main, refused, tmp_path):
    (tmp_path / "start.yaml").write_text("lr: 1.0e+30\n")
    ask = (
        "tune",
        "--method",
        "fine-tuning",
        *SMALL,
        "--config",
        tmp_path / "start.yaml",
        "--out",
        tmp_path / "t",
        "-q",
    )
    line = refused(*ask, "--trials", "1")
    assert line.startswith("all 1 trials diverged") and "task 1" in line
    done = main(*ask, "--trials", "2")
    assert (done.returncode, done.stderr) == (0, "")
    first, second = trials_of(tmp_path / "t")
    assert (first["lr"], first["mAP"]) == ("1e+30", "-inf") and "task 1" in first["error"]
    assert float(second["mAP"]) > 0 and second["error"] == ""
    assert options_of(tmp_path / "t")["lr"] == float(second["lr"]) < 1
    before = snapshot(tmp_path / "t" / "trials")
    assert main(*ask, "--trials", "2").returncode == 0
    assert snapshot(tmp_path / "t" / "trials") == before


# The search on made-up scores


class Runs:
    """In place of `run_all`: a run's mAP follows from its options and seed alone."""

    def __init__(self, landscape):
        self.landscape, self.batches, self.broken = landscape, [], {}
        self.again = None

    def __call__(self, planned, jobs, *, console, again, staff):
        self.batches.append([plan.folder.name for plan in planned])
        self.again = again
        return [Outcome(plan, self.run(plan)) for plan in planned]

    def run(self, plan):
        config = Config.make(plan.values)
        if self.broken.get(config.lr):
            return self.broken[config.lr]
        plan.folder.mkdir(parents=True)
        final = {"finished": True, "final": {"mAP": self.landscape(config)}}
        (plan.folder / "metrics.json").write_text(json.dumps(final))
        machine = {"date": "2026-01-02", "device": "a machine", "commit": "c0ffee", "lifelabel": "1", "seconds": 2.5}
        (plan.folder / "environment.json").write_text(json.dumps(machine))
        return None


def plain(value):
    return [plain(part) for part in value] if isinstance(value, (tuple, list)) else value


def shown(config, method):
    """The knobs of a configuration, with their values."""
    names = ("lr", "backbone_lr", "later_backbone_lr", "batch_norm")
    own = {name: plain(getattr(config.method_options, name)) for name in METHODS[method].tunes}
    return {**{name: getattr(config, name) for name in names}, **own}


def rugged(salt, method):
    """Scores without rhyme or reason, the same for the same options."""

    def score(config):
        told = json.dumps([salt, config.seed, shown(config, method)], sort_keys=True)
        return int(hashlib.sha256(told.encode()).hexdigest()[:8], 16) / 16**8

    return score


@pytest.fixture
def search(monkeypatch, tmp_path):
    def run(landscape, method="lwf", stream="scenes", broken=None, fixed=None, out="out", **more):
        runs = Runs(landscape)
        runs.broken = broken or {}
        monkeypatch.setattr(tune, "run_all", runs)
        given = {"stream": stream, **(fixed or {})}
        return tune.tune(tune.Search(method, given, fixed or {}, tmp_path / out, **more)), runs

    return run


VALUES = {
    "scenes": [(1e-4, 3e-4, 1e-3, 3e-3), (3e-4, 1e-3, 2e-3), ("first-task", "running")],
    "split-coco": [(3e-4, 1e-3, 3e-3), (5e-6, 2e-5, 1e-4), ("frozen", "running", "first-task")],
}


def by_hand(method, stream, landscape, budget):
    """The search as docs/tune.md tells it: what is tried, in that order, and what each of it is worth."""
    rates, backbones, norms = VALUES[stream]
    start = shown(Config.make({"stream": stream, "method": method}, with_preset=False), method)
    point = {**start, "ratio": start["later_backbone_lr"] / start["backbone_lr"]}
    del point["later_backbone_lr"]
    knobs = [("lr", rates), *METHODS[method].tunes.items(), ("backbone_lr", backbones), ("ratio", (0.1, 0.3, 1.0))]
    knobs += [("batch_norm", norms)]
    tried = {}

    def score(point):
        """None where nothing is left to try it."""
        key = json.dumps(point)
        if key not in tried and len(tried) < budget:
            shared = {name: point[name] for name in ("lr", "backbone_lr", "batch_norm")}
            shared["later_backbone_lr"] = float(f"{point['backbone_lr'] * point['ratio']:.6g}")
            own = {name: point[name] for name in METHODS[method].tunes}
            config = Config.make({"stream": stream, "method": method, **shared, "method_options": own})
            tried[key] = landscape(config), shown(config, method)
        return tried[key][0] if key in tried else -1

    score(point)
    for _ in range(10):
        for name, values in knobs:
            best = point
            for value in values:
                other = {**point, name: plain(value)}
                if score(other) > score(best):
                    best = other
            point = best
    return list(tried.values()), tried[json.dumps(point)]


@pytest.mark.parametrize("stream", VALUES)
@pytest.mark.parametrize("method", ["lwf", "der++", "fine-tuning"])
@pytest.mark.parametrize("budget", [1, 2, 5, 12, 40])
def test_the_search_is_the_plain_loop(search, stream, method, budget):
    landscape = rugged(budget, method)
    tried, (score, best) = by_hand(method, stream, landscape, budget)
    found, runs = search(landscape, method, stream, trials=budget)
    rows = trials_of(found.path.parent)
    for name in best:
        column = f"method.{name}" if name in METHODS[method].tunes else name
        assert [row[column] for row in rows] == [text(options[name]) for _, options in tried]
    assert [row["mAP"] for row in rows] == [f"{100 * value:.4f}" for value, _ in tried]
    assert found.best.score == score == max(value for value, _ in tried)
    assert options_of(found.path.parent) == {"method": method, **best}
    assert sum(map(len, runs.batches)) == len(rows)
    assert len(runs.batches[0]) == min(budget, 1 + len([v for v in VALUES[stream][0] if v != tried[0][1]["lr"]]))


def text(value):
    if isinstance(value, list):
        return ",".join(map(text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_every_value_of_every_knob_is_a_value_of_its_option():
    for method, cls in METHODS.items():
        for kind, stream in zip(KINDS, VALUES, strict=True):
            for name, values in tune.knobs_of(method, kind, {}).items():
                for value in values:
                    given = {"method_options": {name: value}} if name in cls.tunes else {name: value}
                    Config.make({"stream": stream, "method": method, **given})


def test_the_mean_over_seeds_counts(search):
    found, runs = search(rugged(0, "lwf"), trials=3, seeds=(0, 3, 7))
    assert len(runs.batches[0]) == 9 and [name[-2:] for name in runs.batches[0][:3]] == ["-0", "-3", "-7"]
    for row in trials_of(found.path.parent):
        scores = []
        for folder in row["folders"].split():
            run = json.loads((found.path.parent / "trials" / folder / "metrics.json").read_text())
            scores.append(run["final"]["mAP"])
        assert len(set(scores)) == 3 and float(row["mAP"]) == pytest.approx(100 * sum(scores) / 3, abs=1e-4)
        assert float(row["seconds"]) == 7.5
    assert "(3 trials, seeds 0, 3, 7)" in presets.story(found.path.read_text()).reached


def test_what_is_set_is_not_searched_and_is_in_the_preset(search):
    own = next(iter(METHODS["lwf"].tunes))
    value = plain(METHODS["lwf"].tunes[own][0])
    fixed = {"lr": 0.007, "later_backbone_lr": 1.5e-4, "batch_size": 4, "method_options": {own: value}}
    found, _ = search(rugged(0, "lwf"), fixed=fixed, trials=30)
    rows = trials_of(found.path.parent)
    assert {row["lr"] for row in rows} == {"0.007"} and {row["later_backbone_lr"] for row in rows} == {"0.00015"}
    assert 4 <= len(rows) <= 6 and len({row["backbone_lr"] for row in rows}) == 3  # with two kinds of batch norm
    assert {name: options_of(found.path.parent)[name] for name in ("lr", own)} == {"lr": 0.007, own: value}
    assert "batch_size" not in options_of(found.path.parent)


def test_the_upper_bound_has_one_task(search):
    """Nothing is spent on statistics that freeze after the first task, which is what running ones do here."""
    found, _ = search(rugged(0, "multi-task"), "multi-task", trials=60)
    assert {row["batch_norm"] for row in trials_of(found.path.parent)} == {"running"}


def test_a_method_may_have_fewer_knobs_or_none(search, monkeypatch):
    monkeypatch.setattr(METHODS["fine-tuning"], "knobs", ("lr",), raising=False)
    found, _ = search(rugged(0, "fine-tuning"), "fine-tuning", trials=60)
    assert len(trials_of(found.path.parent)) in (4, 5) and list(options_of(found.path.parent)) == ["method", "lr"]
    monkeypatch.setattr(METHODS["fine-tuning"], "knobs", (), raising=False)
    found, _ = search(rugged(0, "fine-tuning"), "fine-tuning", trials=60, out="none")
    assert len(trials_of(found.path.parent)) == 1 and options_of(found.path.parent) == {"method": "fine-tuning"}
    assert "nothing to choose" in str(found)


def test_a_run_that_breaks_for_another_reason_ends_the_search_and_is_tried_again(search, tmp_path):
    with pytest.raises(tune.UserError, match=r"lwf trial . \(lr=0\.003\), seed 0: its process was killed"):
        search(rugged(0, "lwf"), broken={3e-3: "its process was killed"}, trials=30)
    assert not list(tmp_path.rglob(tune.FAILED))
    found, runs = search(rugged(0, "lwf"), trials=30, again="lifelabel tune …")
    assert len(runs.batches[0]) == 1 and runs.again == "lifelabel tune …"  # of the first knob, the one that broke
    fresh, _ = search(rugged(0, "lwf"), trials=30, out="fresh")
    assert found.best.options == fresh.best.options


def test_more_trials_go_on_where_fewer_ended(search):
    search(rugged(0, "lwf"), trials=7)
    found, runs = search(rugged(0, "lwf"), trials=20)
    assert sum(map(len, runs.batches)) == len(trials_of(found.path.parent)) - 7
    fresh, _ = search(rugged(0, "lwf"), trials=20, out="fresh")
    assert found.best.score == fresh.best.score


def test_several_methods_have_a_folder_each(main, monkeypatch, tmp_path):
    runs = Runs(rugged(0, "fine-tuning"))
    monkeypatch.setattr(tune, "run_all", runs)
    ask = ("--trials", "2", "--set", "stream.tasks=4", "--jobs", "3", "--out", tmp_path / "my runs")
    done = main("tune", "--method", "fine-tuning, multi-task", *ask)
    assert done.returncode == 0
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["fine-tuning", "multi-task"]
    assert shlex.split(runs.again)[:4] == ["lifelabel", "tune", "--method", "fine-tuning, multi-task"]
    for method in ("fine-tuning", "multi-task"):
        folder = tmp_path / "my runs" / method
        words = shlex.split(presets.story((folder / "preset.yaml").read_text()).command)
        assert words[words.index("--method") + 1] == method and words[words.index("--out") + 1] == str(folder)
        assert words[words.index("--jobs") + 1] == "3"
        before = snapshot(folder)
        assert main(*words[1:]).returncode == 0  # alone, it is the same search
        assert {name: data for name, (data, _) in snapshot(folder).items()} == {n: d for n, (d, _) in before.items()}


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (["--method", "fine-tunning"], "unknown method 'fine-tunning': did you mean 'fine-tuning'?"),
        (["--method", "lwf,"], "unknown method ''"),
        (["--method", "lwf", "--trials", "0"], "--trials must be at least 1, not 0"),
        (["--method", "lwf", "--hold-out", "0"], "--hold-out must be more than 0: options are not"),
        (["--method", "lwf", "--hold-out", "2"], "hold_out must be at most 0.9"),
        (["--method", "lwf", "--tasks", "0"], "first_tasks must be at least 1"),
        (["--method", "lwf", "--tasks", "6"], "stream scenes has 5 tasks, not 6: lower first_tasks"),
        (["--method", "lwf", "--set", "seed=3"], "--set seed: the search sets it itself, by"),
        (["--method", "lwf", "--set", "method.mixx=3"], "unknown option of method lwf 'mixx'"),
        (["--method", "lwf", "--stream", "scenez"], "unknown stream 'scenez'"),
        (["--method", "lwf", "--stream", "split-coco"], "stream split-coco needs the folder of its images"),
        (["--method", "lwf", "--seeds", "x"], "--seeds takes 0 or 0-2"),
        (["--method", "lwf", "--config", "c.yaml"], "c.yaml holds options of method agcn: take them out"),
        ([], "Missing option"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_leave_nothing(refused, tmp_path, monkeypatch, ask, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("method: agcn\nmethod_options: {mix: 0.1}\n")
    assert says in refused("tune", *ask, "--out", "out")
    assert not list(tmp_path.rglob("config.yaml")) and not list(tmp_path.rglob("preset.yaml"))


def test_a_folder_in_use(refused, tmp_path):
    with RunFolder(tmp_path).locked():
        assert "in use by another process" in refused("tune", "--method", "lwf", "--out", tmp_path)
    (tmp_path / "file").touch()
    assert "cannot write to" in refused("tune", "--method", "lwf", "--out", tmp_path / "file")
