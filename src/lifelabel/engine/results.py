"""What a run leaves after each task: acm.npz, the model folder, environment.json and metrics.json."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from lifelabel.engine.environment import machine, memory
from lifelabel.engine.evaluator import Evaluator
from lifelabel.engine.setup import Run
from lifelabel.model.info import ModelInfo
from lifelabel.model.model_folder import write_model
from lifelabel.nn.backbones import Backbone
from lifelabel.nn.inference import InferenceNetwork
from lifelabel.registry import loaded_plugins
from lifelabel.runs import names
from lifelabel.runs.folder import json_text
from lifelabel.runs.lines import JsonLines
from lifelabel.runs.records import Environment, summarise
from lifelabel.streams.stream import task_names, task_of_class

_RELATIONS = 10
"""Related classes of each class that are listed."""


def summary(run: Run) -> dict[str, Any]:
    """The content of metrics.json."""
    c, p = run.config, run.progress
    about = {"stream": run.info.name, "method": c.method, "fidelity": c.fidelity, "seed": c.seed}
    skipped = {"train": len(p.bad_train), "test": len(p.bad_test)}
    return {**about, **summarise(p.records, run.info.tasks), "skipped": skipped}


def write_results(run: Run, evaluator: Evaluator, lines: Mapping[str, JsonLines], seconds: float) -> None:
    """Write all files after a task. metrics.json of a finished run is written later, as its last file.

    `lines` has the .jsonl files by their names, and `seconds` is what the run has taken so far.
    """
    folder, matrix, finished = run.folder, run.method.matrix(), run.progress.task == len(run.tasks)
    if matrix is not None and finished:  # the last matrix has those of all tasks
        sizes = [len(task.classes) for task in run.info.tasks]  # a joint run has one task
        folder.write_matrices(matrix, sizes, run.info.classes, run.label_server.truth())
    _write_model(run, evaluator, finished)
    environment = _environment(run, seconds)
    if finished:
        for each in lines.values():
            each.sync()
        digests = {**folder.digests, **{name: each.sha256 for name, each in lines.items()}}
        digests[names.METRICS] = hashlib.sha256(json_text(summary(run)).encode()).hexdigest()
        environment["sha256"] = {name: digests[name] for name in sorted(digests) if name != names.ENVIRONMENT}
    folder.write_json(names.ENVIRONMENT, environment)
    if not finished:
        folder.write_json(names.METRICS, summary(run))


def _environment(run: Run, seconds: float) -> Environment:
    c, p, setting = run.config, run.progress, run.method.setting
    found: dict[str, Any] = {
        **machine(run.device),
        "processes": run.group.size,
        "label": c.label,
        "equal": c.equal_options(),
        "preset": c.has_preset,
        "changed_options": p.changed_options,
        "precision": setting.precision,
        "recorded": setting.record,
        "compiled": setting.compile,
        "seconds": round(seconds, 3),
        "images_per_second": round(p.images / seconds, 2) if seconds else None,
        **memory(run.device),
        "footprint": dataclasses.asdict(run.method.footprint()),
        "stream_fingerprint": run.info.fingerprint,
        "image_size": run.image_size,
        "images_by_task": _images_by_task(run),
        "images_missing": sum(run.info.missing),
        "images_skipped": len(p.bad_train) + len(p.bad_test),
        "weights": setting.backbone.provenance.to_dict(),
    }
    return cast(Environment, found)


def _images_by_task(run: Run) -> list[int | None]:
    """The number of training images of each task so far, also of those that were learned before."""
    earlier = run.progress.extends["images"] if run.progress.extends else []
    return [*earlier, *run.info.sizes[len(earlier) : None if run.joint else run.progress.task]]


def _write_model(run: Run, evaluator: Evaluator, finished: bool) -> None:
    """Write the model folder after the last task, and with `keep_tasks` one after every task."""
    if not (finished or run.config.keep_tasks):
        return
    network = evaluator.usable_network()
    if network is None:
        if finished:
            run.callback.note(
                f"method {run.config.method} has no network for use after training: no model folder is "
                "written (see Method.network)"
            )
        return
    info = _describe_model(run, network, finished)
    folders = [names.model_of_task(run.progress.task)] if run.config.keep_tasks else []
    for folder in [*folders, names.MODEL] if finished else folders:
        digests = write_model(run.folder / folder, network, info, run.trained)
        run.folder.digests |= {f"{folder}/{name}": digest for name, digest in digests.items()}


def _describe_model(run: Run, network: InferenceNetwork, finished: bool) -> ModelInfo:
    """What model.json holds of a method. It goes to other machines: it has no paths of this one."""
    c, p, info, method, backbone = run.config, run.progress, run.info, run.method, network.backbone
    classes = [name for task in method.tasks for name in task]
    tasks = task_of_class(info.tasks)[: len(classes)].tolist()
    record = p.records[-1]
    return ModelInfo(
        classes=tuple(classes),
        task_of_class=tuple(tasks),
        image_size=run.image_size,
        method=c.method,
        label=c.label,
        backbone=c.backbone,
        pool=c.pool,
        normalize=tuple({"mean": list(e.normalize.mean), "std": list(e.normalize.std)} for e in backbone.parts),
        provenance={**backbone.provenance.to_dict(), "source": _without_folders(backbone)},
        network=network.describe(),
        precision=method.setting.precision,
        relations=_relations(method.matrix()),
        task_names=tuple(task_names(info.tasks[: tasks[-1] + 1])),
        stream={"name": info.name, "fingerprint": info.fingerprint, "dataset": info.dataset},
        training={
            **machine(run.device),
            "seed": c.seed,
            "images": _images_by_task(run),
            "final": summary(run)["final"] if finished else {**record["seen"], "ap": record.get("ap")},
            "epochs": c.epochs,
            "changed_options": p.changed_options,
            "extends": {**p.extends, "run": Path(p.extends["run"]).name} if p.extends else None,
            "plugins": [Path(each).name if Path(each).is_absolute() else each for each in loaded_plugins()],
        },
    )


def _without_folders(backbone: Backbone) -> str:
    """The source of the initial weights, with the names of files in place of their paths."""
    sources = [part.provenance.source for part in backbone.parts]
    kept = (f"file {Path(each[5:]).name}" if each.startswith("file ") else each for each in sources)
    return " + ".join(dict.fromkeys(kept))


def _relations(matrix: np.ndarray | None) -> tuple[tuple[tuple[int, float], ...], ...] | None:
    """For each class j, the classes i with the largest P(C_i | C_j), entry [i, j], in descending order."""
    if matrix is None:
        return None
    given = np.clip(matrix.T, 0, 1)
    np.fill_diagonal(given, 0)
    first = np.argsort(-given, axis=1, kind="stable")[:, :_RELATIONS]
    return tuple(
        tuple((int(i), round(float(row[i]), 4)) for i in order if row[i] > 0)
        for row, order in zip(given, first, strict=True)
    )
