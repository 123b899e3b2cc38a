"""A metric of one's own, registered by the plug-in file of docs/metrics.md."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from lifelabel.metrics import METRICS, Scored, mean_f1

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def snippet(heading):
    """The first Python example below a heading of the docs page."""
    section = DOCS.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "my_metric.py"
    path.write_text(snippet("Add a metric"))
    return path


def test_a_metric_of_a_plugin_is_listed(lifelabel, plugin):
    done = lifelabel("list", "metrics", "--plugin", plugin)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "cf1_mean@0.3         mean of the per-class F1, at 0.3 (me)"
    assert len(lines) == len(METRICS) + 1


def test_a_metric_of_a_plugin_is_in_the_results_of_a_run(lifelabel, small, plugin, tmp_path):
    folder = tmp_path / "run"
    args = ("--method", "fine-tuning", *small, "--set", "first_tasks=1", "--save-scores", "--out", folder, "-q")
    done = lifelabel("train", *args, "--plugin", plugin)
    assert done.returncode == 0, done.stderr
    conventions = json.loads((folder / "metrics.json").read_text())["final"]["conventions"]
    assert list(conventions) == [*METRICS, "cf1_mean@0.3"]
    with np.load(folder / "scores.npz") as arrays:
        scored = Scored.from_logits(arrays["logits"], arrays["labels"])
    assert conventions["cf1_mean@0.3"] == pytest.approx(mean_f1(scored.probabilities, scored.labels, 0.3), abs=1e-12)


def test_the_example_from_python_runs(capsys):
    exec(snippet("From Python"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("{'mAP': 0.916")
    assert lines[1:] == ["0.3333333333333333", "tensor([0.8333, 1.0000], dtype=torch.float64)", "0.30000000000000004"]
