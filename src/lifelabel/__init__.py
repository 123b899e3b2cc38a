"""lifelabel: lifelong multi-label image recognition.

Train a method on a stream of tasks, into a run folder:

>>> import lifelabel, tempfile
>>> small = {"train_images": 60, "test_images": 40}
>>> run = lifelabel.train(tempfile.mkdtemp(), method="fine-tuning", tasks=2, stream_options=small)
>>> sorted(run.metrics["final"]["forgetting"])
['CF1', 'OF1', 'mAP']

Use its model on images:

>>> model = lifelabel.load(run.folder, device="cpu")
>>> image = lifelabel.streams.build("scenes", small).test.images.read(0)
>>> len(model.predict([image], top=3)[0])
3

Models: `load`, `Model`, `evaluate`, `calibrate`, `export`. Runs: `train`, `resume`, `extend`, `run_all`, `Config`,
`Result`; `verify`, `Verification`, `Check`. Your own methods: `Method`, `FineTuning`, `Batch`, `Footprint`,
`option`, `load_plugin`, and the registries `METHODS`, `STREAMS`, `BACKBONES` and `METRICS`.
Parts for your own training loop: `task_loaders`, `Learner`, `LinearHead`, `Expert`, `ACM`, `CalibratedACM`,
`LabelRelations`, `Adjacency`, `GraphNetwork`, `Reservoir`, and the modules `losses`, `metrics`, `streams` and
`backbones`.
`dir(lifelabel)` lists all public names. Everything else is private and may change.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from lifelabel.version import __version__

if TYPE_CHECKING:
    from lifelabel import metrics, streams
    from lifelabel.config.config import Config
    from lifelabel.engine.calibrator import calibrate
    from lifelabel.engine.callback import Callback
    from lifelabel.engine.extension import extend
    from lifelabel.engine.run import Result, resume, train
    from lifelabel.engine.task_loaders import TaskData, task_loaders
    from lifelabel.engine.verification import Check, Verification, verify
    from lifelabel.errors import Diverged, HiddenLabel, UserError
    from lifelabel.methods import METHODS, Batch, FineTuning, Footprint, HostBatch, Method
    from lifelabel.methods.buffer import Buffer, BufferOptions, Reservoir
    from lifelabel.metrics import METRICS
    from lifelabel.model.exporter import export
    from lifelabel.model.model import Model, load
    from lifelabel.nn import backbones, losses
    from lifelabel.nn.backbones import BACKBONES
    from lifelabel.nn.expert import Expert
    from lifelabel.nn.graph import ACM, Adjacency, CalibratedACM, GraphNetwork, LabelRelations
    from lifelabel.nn.learner import Learner, LinearHead
    from lifelabel.nn.method_setting import Setting
    from lifelabel.options import option
    from lifelabel.registry import load_plugin
    from lifelabel.report.evaluation import evaluate
    from lifelabel.search.planned_run import PlannedRun
    from lifelabel.search.scheduler import run_all
    from lifelabel.streams import STREAMS, Stream

# Before torch is imported: its threads wait actively, and slow down other work on a busy machine and each other (a step
# took 2 to 10 times as long). On an idle machine this makes no difference.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__all__ = [
    "ACM", "BACKBONES", "METHODS", "METRICS", "STREAMS", "Adjacency", "Batch", "Buffer", "BufferOptions",
    "CalibratedACM", "Callback", "Check", "Config", "Diverged", "Expert", "FineTuning", "Footprint", "GraphNetwork",
    "HiddenLabel", "HostBatch", "LabelRelations", "Learner", "LinearHead", "Method", "Model", "PlannedRun",
    "Reservoir", "Result", "Setting", "Stream", "TaskData", "UserError", "Verification", "__version__", "backbones",
    "calibrate", "evaluate", "export", "extend", "load", "load_plugin", "losses", "metrics", "option", "resume",
    "run_all", "streams", "task_loaders", "train", "verify",
]  # fmt: skip

_HOMES = {
    "lifelabel.config.config": ("Config",),
    "lifelabel.engine.calibrator": ("calibrate",),
    "lifelabel.engine.callback": ("Callback",),
    "lifelabel.engine.extension": ("extend",),
    "lifelabel.engine.run": ("Result", "resume", "train"),
    "lifelabel.engine.task_loaders": ("TaskData", "task_loaders"),
    "lifelabel.engine.verification": ("Check", "Verification", "verify"),
    "lifelabel.errors": ("Diverged", "HiddenLabel", "UserError"),
    "lifelabel.methods": ("METHODS", "Batch", "FineTuning", "Footprint", "HostBatch", "Method"),
    "lifelabel.methods.buffer": ("Buffer", "BufferOptions", "Reservoir"),
    "lifelabel.metrics": ("METRICS",),
    "lifelabel.model.exporter": ("export",),
    "lifelabel.model.model": ("Model", "load"),
    "lifelabel.nn.backbones": ("BACKBONES",),
    "lifelabel.nn.expert": ("Expert",),
    "lifelabel.nn.graph": ("ACM", "Adjacency", "CalibratedACM", "GraphNetwork", "LabelRelations"),
    "lifelabel.nn.learner": ("Learner", "LinearHead"),
    "lifelabel.nn.method_setting": ("Setting",),
    "lifelabel.options": ("option",),
    "lifelabel.registry": ("load_plugin",),
    "lifelabel.report.evaluation": ("evaluate",),
    "lifelabel.search.planned_run": ("PlannedRun",),
    "lifelabel.search.scheduler": ("run_all",),
    "lifelabel.streams": ("STREAMS", "Stream"),
}
_MODULES = {
    "backbones": "lifelabel.nn.backbones",
    "losses": "lifelabel.nn.losses",
    "metrics": "lifelabel.metrics",
    "streams": "lifelabel.streams",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `lifelabel --help` does not import torch."""
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'lifelabel' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
