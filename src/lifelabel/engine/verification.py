"""Verify a finished run: its files against each other, and its figures against the test images scored again."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lifelabel.config.config import Config
from lifelabel.engine.callback import Callback
from lifelabel.engine.checkpoint import restore
from lifelabel.engine.checkpoint_file import read_checkpoint
from lifelabel.engine.evaluator import compute_features, compute_scores
from lifelabel.engine.label_server import LabelServer
from lifelabel.engine.setup import Run, learns_jointly, start_label_server
from lifelabel.errors import UserError
from lifelabel.images.loader import TestImages
from lifelabel.images.workers import WorkerDied
from lifelabel.model.model import Model, load
from lifelabel.model.model_folder import digests_before_calibration
from lifelabel.nn.device import resolve_device
from lifelabel.options import change_text, declared, read
from lifelabel.runs.folder import RunFolder
from lifelabel.runs.names import CHECKPOINT, MODEL, PREVIOUS_CHECKPOINT
from lifelabel.runs.summary import summarise
from lifelabel.streams import STREAMS
from lifelabel.utils.files import open_regular, sha256
from lifelabel.utils.text import counted, printable, shorten

__all__ = ["FAILED", "NOT_CHECKED", "OK", "Check", "Verification", "verify"]

OK, FAILED, NOT_CHECKED = "ok", "FAILED", "not checked"
_METRICS = "metrics.json"
_TOLERANCE = {"fp32": 0.001, "bf16": 0.01}
"""The largest difference of a figure, as a fraction, by the precision of the training. The folded network of a model
rounds in another order than the method, and in bfloat16 with 8 bits."""
_MAX_LINE = 1 << 20
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError)
"""What wrong types and missing keys in the files of a run folder raise."""
_Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Check:
    """One check: its name, its state (`ok`, `FAILED` or `not checked`), and what was found."""

    name: str
    state: str
    found: str


@dataclass(frozen=True)
class Verification:
    """The checks of a run. `ok` is whether none failed."""

    folder: Path
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.state != FAILED for check in self.checks)


class _NotChecked(Exception):
    """A check cannot be made. The message is the reason."""


def verify(
    run: str | Path, stream_options: Mapping[str, Any] | None = None, *, root: str | Path | None = None,
    score: bool = True, device: str = "auto", batch_size: int | None = None, workers: int | None = None,
    progress: _Progress | None = None, on_check: Callable[[Check], None] | None = None,
) -> Verification:  # fmt: skip
    """Check the folder of a finished run: digests, configuration, stream, history, and the figures of its test set.

    `root` is the folder of the images if they have moved, and `stream_options` has other paths of the stream, such as
    `file`. With `score=False` the test images are not scored. `on_check` is called with each check as it is done, and
    `progress` with the number of scored images and the number of all. Nothing in the folder is changed.

    >>> import tempfile
    >>> from lifelabel.engine.run import train
    >>> small = {"train_images": 40, "test_images": 40}
    >>> run = train(tempfile.mkdtemp(), method="fine-tuning", tasks=2, stream_options=small)
    >>> verify(run.folder).ok
    True
    """
    folder = RunFolder(run)
    if not folder.is_run:
        raise UserError(f"{folder.path} is not a run folder: it has no config.yaml")
    try:
        finished = folder.is_finished
    except UserError:  # a damaged metrics.json is a failed check
        finished = True
    if not finished:
        raise UserError(f"{folder.path} is not finished: continue it with lifelabel train --resume {folder.path}")
    if root is not None and not Path(root).exists():
        raise UserError(f"there is no {root}: give another --root DIR")
    resolve_device(device)
    moved = {**(stream_options or {}), **({} if root is None else {"root": str(root)})}
    checks: list[Check] = []
    with contextlib.ExitStack() as processes:
        verifier = _Verifier(folder, moved, device, processes)
        named = verifier.checks()
        if score:
            named["scores"] = lambda: verifier.scores(batch_size, workers, progress)
        for name, check in named.items():
            checks.append(_checked(name, check))
            if on_check is not None:
                on_check(checks[-1])
    return Verification(folder.path, tuple(checks))


def _checked(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, OK, printable(check()))
    except _NotChecked as reason:
        return Check(name, NOT_CHECKED, printable(str(reason)))
    except UserError as error:
        return Check(name, FAILED, printable(str(error)))
    except OSError as error:
        return Check(name, FAILED, printable(f"cannot read {error.filename}: {error.strerror}"))
    except _DAMAGED as error:
        return Check(name, FAILED, printable(f"a file is damaged ({type(error).__name__}: {shorten(error)})"))


class _Verifier:
    """The files of a run folder, read as far as they can be, and the checks of them."""

    def __init__(
        self, folder: RunFolder, moved: Mapping[str, Any], device: str, processes: contextlib.ExitStack
    ):  # fmt: skip
        self.folder, self.device, self.processes = folder, device, processes
        self.config = _Read(lambda: Config.make(folder.read_config()))
        self.metrics = _Read(lambda: _object(folder, _METRICS))
        self.environment = _Read(lambda: _object(folder, "environment.json"))
        last = folder / CHECKPOINT
        self.state = _Read(lambda: read_checkpoint(last) if last.exists() else None)
        self.model_info = _Read(lambda: _object(folder, f"{MODEL}/model.json") if (folder / MODEL).is_dir() else None)
        self.moved_config = _with_paths(self.config.value(), moved) if self.config.error is None else None
        self.server = _Read(self.start_label_server)
        self.loaded: Model | None = None

    def checks(self) -> dict[str, Callable[[], str]]:
        return {
            "checkpoint.pt": self.checkpoint, PREVIOUS_CHECKPOINT: self.previous_checkpoint,
            "environment.json": self.environment_file, "files": self.files, "configuration": self.configuration,
            "stream": self.stream, "images": self.images, "history.jsonl": self.history,
            "metrics.json": self.metrics_file, "model": self.model,
        }  # fmt: skip

    # Digests

    def checkpoint(self) -> str:
        self.state.required()
        state, tasks = self.saved(), 1 if self.joint else len(self.metrics.value()["tasks"])
        if state["task"] != tasks:
            raise UserError(f"checkpoint.pt is not that of the end of the run: task {state['task']} of {tasks} is done")
        return f"SHA-256 {sha256(self.folder / 'checkpoint.pt')}"

    def previous_checkpoint(self) -> str:
        """The checkpoint from which a run resumes if the last one is damaged."""
        path = self.folder / PREVIOUS_CHECKPOINT
        if not path.exists():
            raise _NotChecked(f"there is no {path.name}")
        read_checkpoint(path)
        return "has the SHA-256 that it records"

    def environment_file(self) -> str:
        """environment.json has the digests of the other files, and the checkpoint has that of environment.json."""
        self.environment.required()
        if self.saved()["digests"]["environment.json"] != sha256(self.folder / "environment.json"):
            raise UserError("environment.json has another SHA-256 than checkpoint.pt records")
        return "has the SHA-256 that checkpoint.pt records"

    def files(self) -> str:
        recorded = self.environment.value()["sha256"]
        wrong, before = self.folder.changes(recorded), {}
        if f"{MODEL}/model.json" in wrong:
            with contextlib.suppress(UserError):  # it is damaged or missing
                before = digests_before_calibration(self.folder / MODEL)
        calibrated = {f"{MODEL}/{name}" for name, digest in before.items() if recorded[f"{MODEL}/{name}"] == digest}
        what = [f"{name} ({how})" for name, how in wrong.items() if name not in calibrated]
        if what:
            raise UserError(f"not as environment.json records: {', '.join(what[:5])}{' …' if len(what) > 5 else ''}")
        after = "; the model was calibrated after the run" if calibrated else ""
        return f"{len(recorded):,} files have the SHA-256 that environment.json records{after}"

    # The configuration against the results

    def configuration(self) -> str:
        config, metrics, state = self.config.required(), self.metrics.value(), self.optional_state()
        for name in ("method", "fidelity", "seed"):
            _compare(name, {"config.yaml": getattr(config, name), _METRICS: metrics[name]})
        if state is None:
            return "method, fidelity and seed of config.yaml are those of metrics.json"
        entries, saved = config.entries(), Config.make(state["config"]).entries()
        for name, entry in entries.items():
            _compare(name, {"config.yaml": entry.value, "checkpoint.pt": saved[name].value})
        changes = [f"; {change_text(change)}" for change in state["changed_options"]]
        return f"{len(entries)} options of config.yaml are those of checkpoint.pt{''.join(changes)}"

    def stream(self) -> str:
        """Build the stream again, and compare its SHA-256, its tasks and its files."""
        info, metrics, state = self.server.required().info, self.metrics.value(), self.optional_state()
        stated = {"config.yaml": info.fingerprint, "environment.json": self.environment.value()["stream_fingerprint"]}
        if state is not None:
            stated["checkpoint.pt"] = state["stream"]
        if (model := self.model_info.value()) is not None:
            stated["model.json"] = model["stream"]["fingerprint"]
        _compare("SHA-256 of the stream", stated)
        _compare("name of the stream", {"config.yaml": info.name, _METRICS: metrics["stream"]})
        tasks = [list(task.classes) for task in info.tasks]
        _compare("tasks", {"config.yaml": tasks, _METRICS: metrics["tasks"]})
        _compare("classes", {"config.yaml": list(info.classes), _METRICS: metrics["classes"]})
        if state is not None and state["files"] != info.files:
            raise UserError("other images have a file than during the run: if they moved, give --root DIR")
        sizes = {"tasks": len(tasks), "classes": len(info.classes), "test images": len(info.test_rows)}
        counts = ", ".join(counted(size, noun) for noun, size in sizes.items())
        return f"{counts}, SHA-256 {info.fingerprint}"

    def images(self) -> str:
        """The numbers of images in the stream and in all files."""
        info, environment, state = self.server.value().info, self.environment.value(), self.optional_state()
        by_task, new = environment["images_by_task"], slice(info.learned, None)  # those before are of another run
        _compare("number of tasks", {"config.yaml": len(info.tasks), "environment.json": len(by_task)})
        _compare("images by task", {"config.yaml": list(info.sizes[new]), "environment.json": by_task[new]})
        if (model := self.model_info.value()) is not None:
            _compare("images by task", {"environment.json": by_task, "model.json": model["training"]["images"]})
        _compare(
            "missing images", {"config.yaml": sum(info.missing), "environment.json": environment["images_missing"]}
        )
        epochs = self.config.value().epochs
        total = info.joint_size if self.joint else sum(info.sizes[new])
        if state is None:
            return counted(total, "training images")
        skipped = len(state["bad_train"]) + len(state["bad_test"])
        _compare("skipped images", {"checkpoint.pt": skipped, "environment.json": environment["images_skipped"]})
        if not state["bad_train"]:
            _compare("learned images", {"config.yaml": epochs * total, "checkpoint.pt": state["images"]})
        return f"{counted(total, 'training images')}, {state['images']:,} learned, {skipped:,} skipped"

    def history(self) -> str:
        """Steps and images of history.jsonl add up, and are those of the stream and of the checkpoint."""
        info, config, state = self.server.value().info, self.config.value(), self.optional_state()
        size, epochs = config.batch_size, config.epochs
        sizes = (info.joint_size,) if self.joint else info.sizes
        steps = {  # of one pass
            task: math.ceil(count / size) for task, count in enumerate(sizes, 1) if self.joint or task > info.learned
        }
        position, images, lines = (0, 0), 0, 0
        for line in _lines(self.folder / "history.jsonl"):
            at, learned, lines = (line["task"], line["step"]), line["images"] - images, lines + 1
            follows = at > position and 1 <= at[1] <= epochs * steps.get(at[0], 0) and 1 <= learned <= size
            follows = follows and line.get("pass", 1) == (at[1] - 1) // steps[at[0]] + 1
            if not follows or not all(map(math.isfinite, line["losses"].values())):
                raise UserError(f"history.jsonl, line {lines}: its task, step, images or losses cannot be right")
            position, images = at, line["images"]
        if state is not None:
            _compare("learned images", {"history.jsonl": images, "checkpoint.pt": state["images"]})
        if not self.environment.value()["images_skipped"]:
            _compare("number of steps", {"history.jsonl": lines, "config.yaml": epochs * sum(steps.values())})
        return f"{counted(lines, 'steps')}, {counted(images, 'images')}"

    def metrics_file(self) -> str:
        """All of metrics.json follows from the figures of each task, which the checkpoint has too."""
        metrics, state = self.metrics.required(), self.optional_state()
        records, source = (metrics["per_task"], "per_task") if state is None else (state["records"], "checkpoint.pt")
        expected = json.loads(json.dumps(summarise(records, self.server.value().info.tasks)))
        for name, value in expected.items():
            _compare(name, {_METRICS: metrics[name], source: value})
        if (model := self.model_info.value()) is not None:
            _compare("final", {_METRICS: metrics["final"], "model.json": model["training"]["final"]})
        return f"all figures follow from {'per_task' if state is None else 'the records of checkpoint.pt'}"

    def model(self) -> str:
        """model.json against the configuration, and the tensors against model.json."""
        values, config, state = self.model_info.required(), self.config.value(), self.optional_state()
        if values is None:
            raise _NotChecked("there is no model folder")
        for name in ("method", "backbone", "pool"):
            _compare(name, {"config.yaml": getattr(config, name), "model.json": values[name]})
        _compare("seed", {"config.yaml": config.seed, "model.json": values["training"]["seed"]})
        _compare("classes", {_METRICS: self.metrics.value()["classes"], "model.json": values["classes"]})
        if state is not None:
            _compare("image_size", {"checkpoint.pt": state["image_size"], "model.json": values["image_size"]})
        self.loaded = load(self.folder / MODEL, self.device, "fp32" if values["precision"] == "fp32" else "auto")
        return f"model.safetensors has the SHA-256 that model.json records, {values['sha256']}"

    # The test images, scored again

    def scores(self, batch_size: int | None, workers: int | None, progress: _Progress | None) -> str:
        """The figures of the test images, computed again, against those of metrics.json."""
        server, final, state = self.server.value(), self.metrics.value()["final"], self.optional_state()
        info = server.info
        if self.loaded is not None:
            by = "the model"
            logits, good, _ = self.loaded.score_source(info.test, info.test_rows, progress, batch_size, workers)
            rows = info.test_rows[good]
        else:
            by = "the method of checkpoint.pt"
            logits, rows = self.scores_of_checkpoint(progress)
        if state is not None:
            unreadable = {"now": len(info.test_rows) - len(rows), "during the run": len(state["bad_test"])}
            _compare("number of test images that cannot be read", unreadable)
        server.begin(0 if self.joint else len(info.tasks) - 1)
        for task in info.tasks[:-1]:
            server.submit_earlier(task.index, rows, logits[:, : task.end])
        record, _ = server.judge(len(info.tasks), rows, logits, None)
        figures = {name: record[name] for name in ("conventions", "ap", "groups") if name in record}
        found = _flat({**record["seen"], **figures})
        tolerance = _TOLERANCE[self.environment.value()["precision"]]
        return _compare_figures(found, _flat(final), f"{counted(len(rows), 'test images')} by {by}", tolerance)

    def scores_of_checkpoint(self, progress: _Progress | None) -> tuple[np.ndarray, np.ndarray]:
        """Logits of the test images by the method as the checkpoint has it, and the rows of these images."""
        state, config = self.saved(), self.moved_config
        assert config is not None  # a stream was built from it
        with torch.random.fork_rng(), contextlib.ExitStack() as processes:
            try:
                run = processes.enter_context(Run(config, self.folder, Callback()))
            except UserError as error:
                raise _NotChecked(f"the method cannot be made again: {error}") from None
            restore(run, state)
            images = TestImages(run.loader, run.info.test_rows)
            try:
                features = compute_features(run.method, _counted(images, progress), lambda: None)
            except WorkerDied:
                raise UserError("a process that decodes images was killed: was there too little memory?") from None
            return compute_scores(run.method, features), images.rows

    # What the checks share

    @property
    def joint(self) -> bool:
        """Whether all tasks were learned as one."""
        return learns_jointly(self.config.value())

    def optional_state(self) -> dict[str, Any] | None:
        """The checkpoint; None if there is none, or if it is damaged, which its own check reports."""
        return None if self.state.error else self.state.value()

    def saved(self) -> dict[str, Any]:
        """The checkpoint. A user may delete it to save space."""
        if (state := self.state.value()) is None:
            raise _NotChecked("there is no checkpoint.pt")
        return state

    def start_label_server(self) -> LabelServer:
        """The label process. It builds the stream of config.yaml."""
        self.config.value()
        assert self.moved_config is not None
        server = start_label_server(self.moved_config)
        self.processes.callback(server.close)
        return server


class _Read:
    """A file of the run folder, or what is made from one. If it cannot be read, one check fails because of it."""

    def __init__(self, read: Callable[[], Any]):
        self.read = read

    @functools.cached_property
    def _found(self) -> Any:
        try:
            return self.read()
        except UserError as error:
            return error

    @property
    def error(self) -> UserError | None:
        return self._found if isinstance(self._found, UserError) else None

    def required(self) -> Any:
        """The content, for the check that fails if it cannot be read."""
        if self.error is not None:
            raise self.error
        return self._found

    def value(self) -> Any:
        """The content, for other checks."""
        if self.error is not None:
            raise _NotChecked(f"another check failed: {self.error}")
        return self._found


def _with_paths(config: Config, moved: Mapping[str, Any]) -> Config:
    """The configuration with other paths of the stream, whose files have moved."""
    kind, what = STREAMS[config.stream].Options, f"stream {config.stream}"
    for name in moved:
        if name not in declared(kind, "path"):
            raise UserError(f"stream.{name} is not a path of {what}: only paths can differ from those of the run")
    values = {**dataclasses.asdict(config.stream_options), **moved}
    return dataclasses.replace(config, stream_options=read(kind, values, "stream", what)).with_absolute_paths()


def _object(folder: RunFolder, name: str) -> dict[str, Any]:
    found = folder.read_json(name)
    if not isinstance(found, dict):
        raise UserError(f"{folder / name} is damaged: not a JSON object")
    return found


def _lines(path: Path) -> Iterator[Any]:
    """The lines of a .jsonl file. A line of this length is not one of a run."""
    with open_regular(path) as file:
        while line := file.readline(_MAX_LINE):
            yield json.loads(line)


def _counted(images: TestImages, progress: _Progress | None) -> Iterator[Tensor]:
    done = 0
    for pixels in images:
        yield pixels
        done += len(pixels)
        if progress is not None:
            progress(done, len(images.all_rows))


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dicts and lists as one dict with names such as `ap.cat` and `0.mAP`."""
    if isinstance(values, list):
        values = dict(enumerate(values))
    if not isinstance(values, dict):
        return {prefix.removesuffix("."): values}
    return {name: value for key, each in values.items() for name, value in _flat(each, f"{prefix}{key}.").items()}


def _compare(what: str, stated: Mapping[str, Any]) -> None:
    """Raise `UserError` if the values, by the file that states each, are not the same."""
    (first, value), *others = stated.items()
    for name, other in others:
        if other != value:
            one, two = _flat(value), _flat(other)
            at = next((key for key in (*one, *two) if one.get(key, _flat) != two.get(key, _flat)), "")
            shown = (f"{file} has {shorten(values.get(at, 'none'))}" for file, values in ((first, one), (name, two)))
            raise UserError(f"{what}{f', {at}' if at else ''}: {', '.join(shown)}")


def _compare_figures(found: Mapping[str, Any], stated: Mapping[str, Any], what: str, tolerance: float) -> str:
    """The largest difference, in one line. Raises `UserError` if it is above the tolerance."""
    names = found.keys() & stated.keys()  # a metric of a plug-in may not be loaded
    differences = {name: _distance(found[name], stated[name]) for name in sorted(names)}
    worst = max(differences, key=differences.__getitem__)
    shown = "mAP" if differences[worst] <= tolerance else worst
    text = (
        f"{what}: {shown} {_percent(found[shown])}, metrics.json {_percent(stated[shown])}; largest difference of "
        f"{len(names)} figures {differences[worst]:.2g}, tolerance {tolerance:g}"
    )
    if differences[worst] > tolerance:
        raise UserError(text)
    return text


def _distance(one: float | None, two: float | None) -> float:
    if one is None or two is None:
        return 0.0 if one is two else math.inf
    return abs(one - two)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.4f} %"
