"""Verify a finished run: its files against each other, and its figures against the test images scored again."""

from __future__ import annotations

import contextlib
import dataclasses
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
from lifelabel.model.model import load
from lifelabel.model.model_folder import digests_before_calibration
from lifelabel.nn.device import resolve_device
from lifelabel.options import change_text, declared, read
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder
from lifelabel.runs.lines import read_lines
from lifelabel.runs.records import summarise
from lifelabel.streams import STREAMS
from lifelabel.utils.files import sha256
from lifelabel.utils.text import counted, printable, shorten

OK, FAILED, NOT_CHECKED = "ok", "FAILED", "not checked"
_TOLERANCE = {"fp32": 0.001, "bf16": 0.01}
"""The largest difference of a figure, as a fraction, by the precision of the training. The folded network of a model
rounds in another order than the method, and in bfloat16 with 8 bits."""
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


class _Unreadable(Exception):
    """A part of the run that cannot be read: the check `owner` fails, and the others that need it are not made."""

    def __init__(self, owner: str, error: UserError):
        super().__init__(str(error))
        self.owner = owner


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
        raise UserError(f"{folder.path} is not a run folder: it has no {names.CONFIG}")
    try:
        finished = folder.is_finished
    except UserError:  # a damaged metrics.json is a failed check
        finished = True
    if not finished:
        raise UserError(f"{folder.path} is not finished: continue it with lifelabel train --resume {folder.path}")
    if root is not None and not Path(root).exists():
        raise UserError(f"there is no {root}: give another --root DIR")
    resolve_device(device)
    checks: list[Check] = []
    with contextlib.ExitStack() as processes:
        moved = {**(stream_options or {}), **({} if root is None else {"root": str(root)})}
        verifier = _Verifier(folder, moved, device, processes)
        table: dict[str, Callable[[], str]] = {
            names.CHECKPOINT: verifier.checkpoint, names.PREVIOUS_CHECKPOINT: verifier.previous_checkpoint,
            names.ENVIRONMENT: verifier.environment_file, "files": verifier.files,
            "configuration": verifier.configuration, "stream": verifier.stream, "images": verifier.images,
            names.HISTORY: verifier.history, names.METRICS: verifier.metrics_file, "model": verifier.model,
        }  # fmt: skip
        if score:
            table["scores"] = lambda: verifier.scores(batch_size, workers, progress)
        for name, check in table.items():
            checks.append(_checked(name, check))
            if on_check is not None:
                on_check(checks[-1])
    return Verification(folder.path, tuple(checks))


def _checked(name: str, check: Callable[[], str]) -> Check:
    try:
        state, found = OK, check()
    except _NotChecked as reason:
        state, found = NOT_CHECKED, str(reason)
    except _Unreadable as part:
        own = part.owner == name
        state, found = (FAILED, str(part)) if own else (NOT_CHECKED, f"another check failed: {part}")
    except UserError as error:
        state, found = FAILED, str(error)
    except OSError as error:
        state, found = FAILED, f"cannot read {error.filename}: {error.strerror}"
    except _DAMAGED as error:
        state, found = FAILED, f"a file is damaged ({type(error).__name__}: {shorten(error)})"
    return Check(name, state, printable(found))


class _Verifier:
    """The parts of a run folder, each read once and as far as it can be, and the checks of them."""

    def __init__(self, folder: RunFolder, moved: Mapping[str, Any], device: str, processes: contextlib.ExitStack):
        self.folder, self.device, self.processes = folder, device, processes
        self.parts: dict[str, Any] = {}
        with contextlib.suppress(_Unreadable):
            self.moved = _with_paths(self.config, moved)

    def part(self, owner: str, make: Callable[[], Any]) -> Any:
        """A part of the run, which the check `owner` is about."""
        if owner not in self.parts:
            try:
                self.parts[owner] = make()
            except UserError as error:
                self.parts[owner] = _Unreadable(owner, error)
        if isinstance(self.parts[owner], _Unreadable):
            raise self.parts[owner]
        return self.parts[owner]

    @property
    def config(self) -> Config:
        return self.part("configuration", lambda: Config.make(self.folder.read_config()))

    @property
    def metrics(self) -> dict[str, Any]:
        return self.part(names.METRICS, lambda: self.folder.read_json(names.METRICS))

    @property
    def environment(self) -> dict[str, Any]:
        return self.part(names.ENVIRONMENT, lambda: self.folder.read_json(names.ENVIRONMENT))

    @property
    def model_info(self) -> dict[str, Any] | None:
        """The content of model.json; None if there is no model folder."""
        there = (self.folder / names.MODEL).is_dir()
        name = f"{names.MODEL}/{names.MODEL_INFO}"
        return self.part("model", lambda: self.folder.read_json(name) if there else None)

    @property
    def server(self) -> LabelServer:
        """The label server of the stream of config.yaml."""
        _ = self.config  # another check is about it

        def start() -> LabelServer:
            server = start_label_server(self.moved)
            self.processes.callback(server.close)
            return server

        return self.part("stream", start)

    def saved(self) -> dict[str, Any]:
        """The checkpoint. A user may delete it to save space."""
        last = self.folder / names.CHECKPOINT
        state = self.part(names.CHECKPOINT, lambda: read_checkpoint(last) if last.exists() else None)
        if state is None:
            raise _NotChecked(f"there is no {names.CHECKPOINT}")
        return state

    @property
    def state(self) -> dict[str, Any] | None:
        """The checkpoint; None if there is none, or if it is damaged, which its own check reports."""
        with contextlib.suppress(_NotChecked, _Unreadable):
            return self.saved()
        return None

    # Digests

    def checkpoint(self) -> str:
        state, tasks = self.saved(), 1 if learns_jointly(self.config) else len(self.metrics["tasks"])
        if state["task"] != tasks:
            raise UserError(
                f"{names.CHECKPOINT} is not that of the end of the run: task {state['task']} of {tasks} is done"
            )
        return f"SHA-256 {sha256(self.folder / names.CHECKPOINT)}"

    def previous_checkpoint(self) -> str:
        """The checkpoint from which a run resumes if the last one is damaged."""
        path = self.folder / names.PREVIOUS_CHECKPOINT
        if not path.exists():
            raise _NotChecked(f"there is no {path.name}")
        read_checkpoint(path)
        return "has the SHA-256 that it records"

    def environment_file(self) -> str:
        """environment.json has the digests of the other files, and the checkpoint has that of environment.json."""
        _ = self.environment
        if self.saved()["digests"][names.ENVIRONMENT] != sha256(self.folder / names.ENVIRONMENT):
            raise UserError(f"{names.ENVIRONMENT} has another SHA-256 than {names.CHECKPOINT} records")
        return f"has the SHA-256 that {names.CHECKPOINT} records"

    def files(self) -> str:
        recorded = self.environment["sha256"]
        wrong, before = self.folder.changes(recorded), {}
        if f"{names.MODEL}/{names.MODEL_INFO}" in wrong:
            with contextlib.suppress(UserError):  # it is damaged or missing
                before = digests_before_calibration(self.folder / names.MODEL)
        before = {f"{names.MODEL}/{name}": digest for name, digest in before.items()}
        calibrated = {name for name, digest in before.items() if recorded[name] == digest}
        what = [f"{name} ({how})" for name, how in wrong.items() if name not in calibrated]
        if what:
            more = " …" if len(what) > 5 else ""
            raise UserError(f"not as {names.ENVIRONMENT} records: {', '.join(what[:5])}{more}")
        after = "; the model was calibrated after the run" if calibrated else ""
        return f"{len(recorded):,} files have the SHA-256 that {names.ENVIRONMENT} records{after}"

    # The configuration against the results

    def configuration(self) -> str:
        config, metrics, state = self.config, self.metrics, self.state
        for name in ("method", "fidelity", "seed"):
            _compare(name, {names.CONFIG: getattr(config, name), names.METRICS: metrics[name]})
        if state is None:
            return f"method, fidelity and seed of {names.CONFIG} are those of {names.METRICS}"
        entries, saved = config.entries(), Config.make(state["config"]).entries()
        for name, entry in entries.items():
            _compare(name, {names.CONFIG: entry.value, names.CHECKPOINT: saved[name].value})
        changes = [f"; {change_text(change)}" for change in state["changed_options"]]
        return f"{len(entries)} options of {names.CONFIG} are those of {names.CHECKPOINT}{''.join(changes)}"

    def stream(self) -> str:
        """Build the stream again, and compare its SHA-256, its tasks and its files."""
        info, metrics, state, model = self.server.info, self.metrics, self.state, self.model_info
        stated = {names.CONFIG: info.fingerprint, names.ENVIRONMENT: self.environment["stream_fingerprint"]}
        stated |= {} if state is None else {names.CHECKPOINT: state["stream"]}
        stated |= {} if model is None else {names.MODEL_INFO: model["stream"]["fingerprint"]}
        _compare("SHA-256 of the stream", stated)
        tasks = [list(task.classes) for task in info.tasks]
        _compare("name of the stream", {names.CONFIG: info.name, names.METRICS: metrics["stream"]})
        _compare("tasks", {names.CONFIG: tasks, names.METRICS: metrics["tasks"]})
        _compare("classes", {names.CONFIG: list(info.classes), names.METRICS: metrics["classes"]})
        if state is not None and state["files"] != info.files:
            raise UserError("other images have a file than during the run: if they moved, give --root DIR")
        sizes = {"tasks": len(tasks), "classes": len(info.classes), "test images": len(info.test_rows)}
        counts = ", ".join(counted(size, noun) for noun, size in sizes.items())
        return f"{counts}, SHA-256 {info.fingerprint}"

    def images(self) -> str:
        """The numbers of images in the stream and in all files."""
        info, environment, state, model = self.server.info, self.environment, self.state, self.model_info
        by_task, new = environment["images_by_task"], slice(info.learned, None)  # those before are of another run
        _compare("number of tasks", {names.CONFIG: len(info.tasks), names.ENVIRONMENT: len(by_task)})
        _compare("images by task", {names.CONFIG: list(info.sizes[new]), names.ENVIRONMENT: by_task[new]})
        if model is not None:
            _compare("images by task", {names.ENVIRONMENT: by_task, names.MODEL_INFO: model["training"]["images"]})
        missing = environment["images_missing"]
        _compare("missing images", {names.CONFIG: sum(info.missing), names.ENVIRONMENT: missing})
        total = info.joint_size if learns_jointly(self.config) else sum(info.sizes[new])
        if state is None:
            return counted(total, "training images")
        skipped = len(state["bad_train"]) + len(state["bad_test"])
        _compare("skipped images", {names.CHECKPOINT: skipped, names.ENVIRONMENT: environment["images_skipped"]})
        if not state["bad_train"]:
            _compare("learned images", {names.CONFIG: self.config.epochs * total, names.CHECKPOINT: state["images"]})
        return f"{counted(total, 'training images')}, {state['images']:,} learned, {skipped:,} skipped"

    def history(self) -> str:
        """Steps and images of history.jsonl add up, and are those of the stream and of the checkpoint."""
        info, config, joint = self.server.info, self.config, learns_jointly(self.config)
        sizes = enumerate((info.joint_size,) if joint else info.sizes, 1)
        # steps of one pass, by task
        steps = {task: math.ceil(n / config.batch_size) for task, n in sizes if joint or task > info.learned}
        position, images, lines = (0, 0), 0, 0
        for _, line in read_lines(self.folder / names.HISTORY):
            at, learned, lines = (line["task"], line["step"]), line["images"] - images, lines + 1
            follows = at > position and 1 <= at[1] <= config.epochs * steps.get(at[0], 0)
            follows = follows and 1 <= learned <= config.batch_size
            follows = follows and line.get("pass", 1) == (at[1] - 1) // steps[at[0]] + 1
            if not follows or not all(map(math.isfinite, line["losses"].values())):
                raise UserError(f"{names.HISTORY}, line {lines}: its task, step, images or losses cannot be right")
            position, images = at, line["images"]
        if (state := self.state) is not None:
            _compare("learned images", {names.HISTORY: images, names.CHECKPOINT: state["images"]})
        if not self.environment["images_skipped"]:
            _compare("number of steps", {names.HISTORY: lines, names.CONFIG: config.epochs * sum(steps.values())})
        return f"{counted(lines, 'steps')}, {counted(images, 'images')}"

    def metrics_file(self) -> str:
        """All of metrics.json follows from the figures of each task, which the checkpoint has too."""
        metrics, state, model = self.metrics, self.state, self.model_info
        records, source = (metrics["per_task"], "per_task") if state is None else (state["records"], names.CHECKPOINT)
        expected = json.loads(json.dumps(summarise(records, self.server.info.tasks)))
        for name, value in expected.items():
            _compare(name, {names.METRICS: metrics[name], source: value})
        if model is not None:
            _compare("final", {names.METRICS: metrics["final"], names.MODEL_INFO: model["training"]["final"]})
        return f"all figures follow from {'per_task' if state is None else f'the records of {names.CHECKPOINT}'}"

    def model(self) -> str:
        """model.json against the configuration, and the tensors against model.json."""
        values, config, state = self.model_info, self.config, self.state
        if values is None:
            raise _NotChecked("there is no model folder")
        for name in ("method", "backbone", "pool"):
            _compare(name, {names.CONFIG: getattr(config, name), names.MODEL_INFO: values[name]})
        _compare("seed", {names.CONFIG: config.seed, names.MODEL_INFO: values["training"]["seed"]})
        _compare("classes", {names.METRICS: self.metrics["classes"], names.MODEL_INFO: values["classes"]})
        if state is not None:
            sizes = {names.CHECKPOINT: state["image_size"], names.MODEL_INFO: values["image_size"]}
            _compare("image_size", sizes)
        precision = "fp32" if values["precision"] == "fp32" else "auto"
        self.parts["loaded"] = load(self.folder / names.MODEL, self.device, precision)
        return f"{names.MODEL_TENSORS} has the SHA-256 that {names.MODEL_INFO} records, {values['sha256']}"

    # The test images, scored again

    def scores(self, batch_size: int | None, workers: int | None, progress: _Progress | None) -> str:
        """The figures of the test images, computed again, against those of metrics.json."""
        server, info, final, state = self.server, self.server.info, self.metrics["final"], self.state
        if (model := self.parts.get("loaded")) is not None:
            by = "the model"
            logits, good, _ = model.score_source(info.test, info.test_rows, progress, batch_size, workers)
            rows = info.test_rows[good]
        else:
            by = f"the method of {names.CHECKPOINT}"
            logits, rows = self.scores_of_checkpoint(progress)
        if state is not None:
            unreadable = {"now": len(info.test_rows) - len(rows), "during the run": len(state["bad_test"])}
            _compare("number of test images that cannot be read", unreadable)
        server.begin(0 if learns_jointly(self.config) else len(info.tasks) - 1)
        for task in info.tasks[:-1]:
            server.submit_earlier(task.index, rows, logits[:, : task.end])
        record, _ = server.judge(len(info.tasks), rows, logits, None)
        figures = {name: record[name] for name in ("conventions", "ap", "groups") if name in record}
        found = _flat({**record["seen"], **figures})
        tolerance = _TOLERANCE[self.environment["precision"]]
        return _compare_figures(found, _flat(final), f"{counted(len(rows), 'test images')} by {by}", tolerance)

    def scores_of_checkpoint(self, progress: _Progress | None) -> tuple[np.ndarray, np.ndarray]:
        """Logits of the test images by the method as the checkpoint has it, and the rows of these images."""
        state = self.saved()
        with torch.random.fork_rng(), contextlib.ExitStack() as processes:
            try:
                run = processes.enter_context(Run(self.moved, self.folder, Callback()))
            except UserError as error:
                raise _NotChecked(f"the method cannot be made again: {error}") from None
            restore(run, state)
            images = TestImages(run.loader, run.info.test_rows)
            try:
                features = compute_features(run.method, _counted(images, progress), lambda: None)
            except WorkerDied:
                raise UserError("a process that decodes images was killed: was there too little memory?") from None
            return compute_scores(run.method, features), images.rows


def _with_paths(config: Config, moved: Mapping[str, Any]) -> Config:
    """The configuration with other paths of the stream, whose files have moved."""
    kind, what = STREAMS[config.stream].Options, f"stream {config.stream}"
    for name in moved:
        if name not in declared(kind, "path"):
            raise UserError(f"stream.{name} is not a path of {what}: only paths can differ from those of the run")
    values = {**dataclasses.asdict(config.stream_options), **moved}
    return dataclasses.replace(config, stream_options=read(kind, values, "stream", what)).with_absolute_paths()


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
    both = sorted(found.keys() & stated.keys())  # a metric of a plug-in may not be loaded
    differences = {name: _distance(found[name], stated[name]) for name in both}
    worst = max(differences, key=differences.__getitem__)
    shown = "mAP" if differences[worst] <= tolerance else worst
    text = (
        f"{what}: {shown} {_percent(found[shown])}, {names.METRICS} {_percent(stated[shown])}; largest difference of "
        f"{len(both)} figures {differences[worst]:.2g}, tolerance {tolerance:g}"
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
