"""Run folders written by hand, with figures that a pocket calculator can check."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from lifelabel.config.config import Config
from lifelabel.report.tables import write_tables
from lifelabel.runs.finished import read_run

TASKS = [["sky", "boat"], ["sea", "tree"]]
CLASSES = [name for task in TASKS for name in task]
GIGA = 10**9


def scores(value):
    return {"mAP": value, "CF1": value / 2, "OF1": value / 4}


def write_run(
    folder, *, method="agcn", fidelity="tuned", seed=0, mAP=0.5, first=0.8, joint=False, options=None, more=None,
    environment=None, **final,
):  # fmt: skip
    """A run folder in the form the engine writes: two tasks, or one record of both if `joint`."""
    folder.mkdir(parents=True)
    last = {
        "task": 2,
        "seen": scores(mAP),
        "by_task": [scores(0.25), scores(0.75)],
        "cumulative": [scores(first), scores(mAP)],
    }
    records = [last] if joint else [{"task": 1, "seen": scores(first), "by_task": [scores(first)]}, last]
    metrics = {
        "stream": "scenes", "method": method, "fidelity": fidelity, "seed": seed, "classes": CLASSES, "tasks": TASKS,
        "finished": True, "by_task": {}, "per_task": records, "final": {**scores(mAP), **final},
    }  # fmt: skip
    config = Config.make({"method": method, "fidelity": fidelity, "seed": seed, **(options or {})})
    machine = {
        "date": "2024-05-06", "lifelabel": "9.8.7", "commit": "abc123", "torch": "2.6.0", "device": "test-cpu",
        "threads": 2, "seconds": 10.0 + seed, "label": config.label, "equal": config.equal_options(),
        "preset": config.has_preset,
    }  # fmt: skip
    (folder / "config.yaml").write_text(config.to_yaml())
    (folder / "metrics.json").write_text(json.dumps({**metrics, **(more or {})}))
    (folder / "environment.json").write_text(json.dumps({**machine, **(environment or {})}))
    return folder


def edit_json(path, **values):
    """Replace values at the top level of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def write_matrices(folder, truth=True, classes=CLASSES):
    arrays = {"task_1": np.eye(2), "task_2": np.eye(4), "classes": np.array(classes)}
    np.savez(folder / "acm.npz", **arrays, **({"truth": np.full((4, 4), 0.5)} if truth else {}))


def make_run(
    folder, method, seed=0, order=0, mAP=0.5, options=None, stored=(0, 0), fingerprint="f00d" * 4, device=None,
    environment=None, **more,
):  # fmt: skip
    """A finished run that has all costs."""
    costs = {
        "footprint": {"images": stored[0], "bytes": stored[1]}, "images_per_second": 40.0 + seed,
        "peak_memory_bytes": GIGA, "peak_device_memory_bytes": device, "stream_fingerprint": fingerprint,
    }  # fmt: skip
    options = {"task_order": order, **(options or {})}
    more |= {"environment": {**costs, **(environment or {})}}
    return read_run(write_run(folder, method=method, seed=seed, mAP=mAP, options=options, **more))


def forgetting(value):
    """Forgetting of CF1 and OF1 is a half and a quarter of that of mAP, like the scores."""
    return {"forgetting": {"mAP": value, "CF1": value / 2, "OF1": value / 4}}


def table_of(text):
    """The cells of the Markdown tables in `text`."""
    return [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def runs_of_two_and_one_task(folder):
    """Two runs of one label: one with two tasks, and one with one."""
    two, one = (write_run(folder / name, seed=seed) for seed, name in enumerate(("two", "one")))
    records = json.loads((one / "metrics.json").read_text())["per_task"]
    edit_json(one / "metrics.json", tasks=[CLASSES], per_task=records[1:])
    return read_run(two), read_run(one)


def table_file(table, suffix=".md"):
    """The text of one of the files of a table."""
    with TemporaryDirectory() as folder:
        write_tables(table, Path(folder))
        return (Path(folder) / f"table{suffix}").read_text(encoding="utf-8")
