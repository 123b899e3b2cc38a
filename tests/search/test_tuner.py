"""The search for options, on made-up scores, compared with a plain loop."""

import csv
import hashlib
import json
import os

import pytest
import yaml
from engine.small_runs import error_of

from lifelabel.config import presets
from lifelabel.config.config import Config
from lifelabel.errors import Diverged, UserError
from lifelabel.methods import METHODS
from lifelabel.search import tuner as tune
from lifelabel.search.planned_run import Outcome


def trials_of(folder):
    with open(folder / "trials.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def options_of(folder):
    values = yaml.safe_load((folder / "preset.yaml").read_text(encoding="utf-8"))
    return {**{k: v for k, v in values.items() if k != "method_options"}, **values.get("method_options", {})}


class Runs:
    """Replaces `run_all`: the mAP of a run is a function of its options and its seed.

    `failures` has the errors of runs by learning rate, as an exception.
    """

    def __init__(self, score, failures):
        self.score, self.failures, self.batches = score, failures, []
        self.command = None

    def __call__(self, planned, *, display, command, backend):
        self.batches.append([plan.folder.name for plan in planned])
        self.command = command
        return [self.run(plan) for plan in planned]

    def run(self, plan):
        config = Config.make(plan.values)
        plan.folder.mkdir(parents=True, exist_ok=True)
        if error := self.failures.get(config.lr):
            return Outcome(plan, str(error), diverged=isinstance(error, Diverged))
        tasks = [{}] * (config.first_tasks or 10)
        final = {"finished": True, "final": {"mAP": self.score(config)}, "per_task": tasks}
        (plan.folder / "metrics.json").write_text(json.dumps(final))
        machine = {"date": "2026-01-02", "device": "a machine", "commit": "c0ffee", "lifelabel": "1", "seconds": 2.5}
        (plan.folder / "environment.json").write_text(json.dumps(machine))
        return Outcome(plan, new=True)


def plain(value):
    return [plain(part) for part in value] if isinstance(value, (tuple, list)) else value


def searched(config, method):
    """The searched options of a configuration, with their values."""
    names = ("lr", "backbone_lr", "later_backbone_lr", "batch_norm")
    own = {name: plain(getattr(config.method_options, name)) for name in METHODS[method].search_space}
    return {**{name: getattr(config, name) for name in names}, **own}


def random_scores(salt, method):
    """A function with a random score for every configuration. The same options have the same score."""

    def score(config):
        hashed = json.dumps([salt, config.seed, searched(config, method)], sort_keys=True)
        return int(hashlib.sha256(hashed.encode()).hexdigest()[:8], 16) / 16**8

    return score


@pytest.fixture
def search(monkeypatch, tmp_path):
    def run(score, method="lwf", stream="scenes", failures=None, fixed=None, out="out", **more):
        runs = Runs(score, failures or {})
        monkeypatch.setattr(tune, "run_all", runs)
        given = {"stream": stream, **(fixed or {})}
        return tune.tune(tune.Search(method, given, fixed or {}, tmp_path / out, **more)), runs

    return run


VALUES = {
    "scenes": [(1e-4, 3e-4, 1e-3, 3e-3), (3e-4, 1e-3, 2e-3), ("first-task", "running")],
    "split-coco": [(3e-4, 1e-3, 3e-3), (5e-6, 2e-5, 1e-4), ("frozen", "running", "first-task")],
}


def by_hand(method, stream, score_of, budget):
    """The search of docs/tune.md as a loop: the trials in their order with their scores, and the best one."""
    rates, backbones, norms = VALUES[stream]
    start = searched(Config.make({"stream": stream, "method": method}, with_preset=False), method)
    point = {**start, "ratio": start["later_backbone_lr"] / start["backbone_lr"]}
    del point["later_backbone_lr"]
    shared = {"backbone_lr": backbones, "ratio": (0.1, 0.3, 1.0), "batch_norm": norms}
    space = {"lr": rates, **METHODS[method].search_space, **shared}
    tried = {}

    def score(point):
        """The score of a point; -1 if no trial is left for it."""
        key = json.dumps(point)
        if key not in tried and len(tried) < budget:
            shared = {name: point[name] for name in ("lr", "backbone_lr", "batch_norm")}
            shared["later_backbone_lr"] = float(f"{point['backbone_lr'] * point['ratio']:.6g}")
            own = {name: point[name] for name in METHODS[method].search_space}
            config = Config.make({"stream": stream, "method": method, **shared, "method_options": own})
            tried[key] = score_of(config), searched(config, method)
        return tried[key][0] if key in tried else -1

    score(point)
    for _ in range(10):
        for name, values in space.items():
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
def test_the_search_is_equal_to_the_plain_loop(search, stream, method, budget):
    score_of = random_scores(budget, method)
    tried, (score, best) = by_hand(method, stream, score_of, budget)
    found, runs = search(score_of, method, stream, trials=budget)
    rows = trials_of(found.path.parent)
    for name in best:
        column = f"method.{name}" if name in METHODS[method].search_space else name
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


def test_every_candidate_is_a_value_of_its_option():
    for method, cls in METHODS.items():
        for kind, stream in zip(presets.KINDS, VALUES, strict=True):
            for name, values in tune.search_space(method, kind, {}).items():
                for value in values:
                    given = {"method_options": {name: value}} if name in cls.search_space else {name: value}
                    Config.make({"stream": stream, "method": method, **given})


@pytest.mark.parametrize(("first_tasks", "tasks"), [(None, 10), (4, 4)])
def test_a_search_on_a_proxy_stream_uses_all_tasks_or_the_first_ones(search, first_tasks, tasks):
    seen = []

    def score(config):
        seen.append((config.proxy, config.proxy_images, config.first_tasks, config.hold_out))
        return 0.5

    chosen, _ = search(score, trials=2, proxy=True, proxy_images=70, first_tasks=first_tasks, hold_out=0.3)
    assert seen == [(True, 70, first_tasks, 0.3)] * 2
    assert chosen.reached == (
        f"50.00 mAP on held-out images of a proxy stream ({tasks} tasks of other classes) (2 trials, seeds 0)"
    )


def test_a_backbone_without_weights_has_the_values_of_scenes_on_photographs(search, tmp_path):
    search(random_scores(0, "fine-tuning"), "fine-tuning", "split-coco", fixed={"weights": "none"}, trials=30)
    rows = trials_of(tmp_path / "out")
    rates, backbones, norms = VALUES["scenes"]
    assert {float(row["lr"]) for row in rows} == set(rates)
    assert {float(row["backbone_lr"]) for row in rows} == set(backbones)
    assert {row["batch_norm"] for row in rows} == set(norms)


def test_the_score_is_the_mean_over_seeds(search):
    found, runs = search(random_scores(0, "lwf"), trials=3, seeds=(0, 3, 7))
    assert len(runs.batches[0]) == 9 and [name[-2:] for name in runs.batches[0][:3]] == ["-0", "-3", "-7"]
    for row in trials_of(found.path.parent):
        scores = []
        for folder in row["folders"].split():
            run = json.loads((found.path.parent / "trials" / folder / "metrics.json").read_text())
            scores.append(run["final"]["mAP"])
        assert len(set(scores)) == 3 and float(row["mAP"]) == pytest.approx(100 * sum(scores) / 3, abs=1e-4)
        assert float(row["seconds"]) == 7.5
    assert "(3 trials, seeds 0, 3, 7)" in presets.parse_origin(found.path.read_text()).reached


def test_fixed_options_are_not_searched_and_are_in_the_preset(search):
    own = next(iter(METHODS["lwf"].search_space))
    value = plain(METHODS["lwf"].search_space[own][0])
    fixed = {"lr": 0.007, "later_backbone_lr": 1.5e-4, "batch_size": 4, "method_options": {own: value}}
    found, _ = search(random_scores(0, "lwf"), fixed=fixed, trials=30)
    rows = trials_of(found.path.parent)
    assert {row["lr"] for row in rows} == {"0.007"} and {row["later_backbone_lr"] for row in rows} == {"0.00015"}
    assert 4 <= len(rows) <= 6 and len({row["backbone_lr"] for row in rows}) == 3  # and two values of batch_norm
    assert {name: options_of(found.path.parent)[name] for name in ("lr", own)} == {"lr": 0.007, own: value}
    assert "batch_size" not in options_of(found.path.parent)


def test_a_joint_method_does_not_try_first_task_statistics(search):
    """With one task they are the same as running statistics."""
    found, _ = search(random_scores(0, "multi-task"), "multi-task", trials=60)
    assert {row["batch_norm"] for row in trials_of(found.path.parent)} == {"running"}


def test_a_method_may_have_fewer_searched_options_or_none(search, monkeypatch):
    monkeypatch.setattr(METHODS["fine-tuning"], "shared_options", ("lr",), raising=False)
    found, _ = search(random_scores(0, "fine-tuning"), "fine-tuning", trials=60)
    assert len(trials_of(found.path.parent)) in (4, 5) and list(options_of(found.path.parent)) == ["method", "lr"]
    monkeypatch.setattr(METHODS["fine-tuning"], "shared_options", (), raising=False)
    found, _ = search(random_scores(0, "fine-tuning"), "fine-tuning", trials=60, out="none")
    assert len(trials_of(found.path.parent)) == 1 and options_of(found.path.parent) == {"method": "fine-tuning"}
    assert "nothing to choose" in str(found)


def test_an_error_that_is_not_divergence_ends_the_search_and_the_trial_is_repeated(search, tmp_path):
    """Whatever its text is."""
    text = "the label file changed. Lower lr, backbone_lr or later_backbone_lr"
    line = error_of(search, random_scores(0, "lwf"), failures={3e-3: UserError(text)}, trials=30)
    assert line == f"lwf trial 4 (lr=0.003), seed 0: {text}"
    assert not list(tmp_path.rglob("failed.txt"))
    found, runs = search(random_scores(0, "lwf"), trials=30, continue_command="lifelabel tune …")
    assert len(runs.batches[0]) == 1 and runs.command == "lifelabel tune …"  # the one trial that failed
    other, _ = search(random_scores(0, "lwf"), trials=30, out="other")
    assert found.best.options == other.best.options


def test_a_diverged_trial_has_the_worst_score_and_is_not_repeated(search):
    scores, failures = random_scores(0, "lwf"), {3e-3: Diverged("any text"), 1e-4: Diverged("any text")}
    found, _ = search(scores, failures=failures, trials=30)
    rows = trials_of(found.path.parent)
    diverged = [row for row in rows if float(row["lr"]) in failures]
    assert len(diverged) >= 2 and found.best.options["lr"] not in failures
    assert {(row["mAP"], row["error"]) for row in diverged} == {("-inf", "any text")}
    _, runs = search(scores, failures=failures, trials=30)
    assert not any(runs.batches)


def test_a_diverged_trial_is_recorded_if_another_trial_ends_the_search(search, tmp_path):
    failures = {1e-4: UserError("no memory"), 3e-3: Diverged("any text")}
    with pytest.raises(UserError, match="no memory"):
        search(random_scores(0, "lwf"), failures=failures, trials=30)
    (path,) = tmp_path.rglob("failed.txt")
    assert path.read_text() == "any text\n"


def test_more_trials_continue_an_earlier_search(search):
    search(random_scores(0, "lwf"), trials=7)
    found, runs = search(random_scores(0, "lwf"), trials=20)
    assert sum(map(len, runs.batches)) == len(trials_of(found.path.parent)) - 7
    other, _ = search(random_scores(0, "lwf"), trials=20, out="other")
    assert found.best.score == other.best.score


def test_a_search_does_not_start_from_the_preset(tmp_path, monkeypatch):
    preset = "# command: x\n# reached: y\nmethod: er\nlr: 0.0123\nmethod_options:\n  replay_weight: 0.77\n"
    monkeypatch.setattr(presets, "_text", lambda kind, method: preset)
    one = tune.Search("er", {"stream": "scenes"}, {}, tmp_path)
    start = tune._CoordinateDescent(one).start()
    assert (start["lr"], start["replay_weight"]) == (3e-4, 1.0)


def put(text):
    return lambda path: path.write_text(text)


def replace_by(make):
    return lambda path: (path.unlink(), make(path))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("metrics.json", put("[]")),
        ("metrics.json", put("{")),
        ("metrics.json", put("[" * 100_000)),
        ("metrics.json", put('{"finished": true, "final": {"mAP": "0.5"}, "per_task": []}')),
        ("metrics.json", put('{"finished": true, "final": [], "per_task": []}')),
        ("metrics.json", put('{"finished": true, "final": {"mAP": NaN}, "per_task": []}')),
        ("metrics.json", put('{"finished": true, "final": {"mAP": 0.5}, "per_task": 3}')),
        ("environment.json", put("[]")),
        ("environment.json", put('{"seconds": "2"}')),
        ("environment.json", put('{"seconds": 2}')),
        ("environment.json", replace_by(os.mkfifo)),
        ("environment.json", replace_by(lambda path: path.mkdir())),
        ("environment.json", replace_by(lambda path: None)),
        ("failed.txt", os.mkfifo),
        ("failed.txt", lambda path: path.mkdir()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_trial_is_one_line_with_its_folder(search, tmp_path, name, damage):
    search(random_scores(0, "lwf"), trials=2)
    folder = min((tmp_path / "out" / "trials").iterdir())
    damage(folder / name)

    def finished(planned, *args, **more):
        return [Outcome(plan, new=True) for plan in planned]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "run_all", finished)
        line = error_of(tune.tune, tune.Search("lwf", {"stream": "scenes"}, {}, tmp_path / "out", trials=2))
    assert str(folder) in line and "\n" not in line


def test_the_reason_of_a_diverged_trial_may_have_any_bytes(search, tmp_path):
    search(random_scores(0, "lwf"), trials=2)
    first, _ = sorted((tmp_path / "out" / "trials").iterdir())
    (first / "failed.txt").write_bytes(b"\xff\x00\n")
    found, _ = search(random_scores(0, "lwf"), trials=2)
    assert [row["error"] for row in trials_of(found.path.parent)] == ["\ufffd\ufffd", ""]
