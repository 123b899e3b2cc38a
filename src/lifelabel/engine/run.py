"""One run: the order of images, seeds, devices, checkpoints. It does not depend on a specific method or stream."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
import shlex
import signal
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from lifelabel.config.config import Config, merge, nest_flags
from lifelabel.engine.callback import Callback
from lifelabel.engine.checkpoint import (
    Progress,
    affects_figures,
    changed_options,
    check_same_run,
    extended_run,
    get_random_state,
    kept_lines,
    new_changes,
    recorded_digests,
    set_random_state,
    trained_pairs,
)
from lifelabel.engine.checkpoint_file import load_checkpoint, save_checkpoint
from lifelabel.engine.checks import (
    check_images,
    check_losses,
    check_metrics,
    check_passes,
    check_state,
    check_step_memory,
)
from lifelabel.engine.environment import machine, memory, reset_peak_memory
from lifelabel.engine.evaluator import Evaluator
from lifelabel.engine.label_server import LabelServer
from lifelabel.engine.loss_history import LossHistory, PendingStep
from lifelabel.engine.model_description import describe_model
from lifelabel.engine.saving import AsyncSaver, all_finite
from lifelabel.engine.setup import build_method
from lifelabel.engine.task_steps import TaskPasses
from lifelabel.engine.tensorboard import EventLog, check_tensorboard
from lifelabel.errors import Diverged, Interrupted, Stopped, UserError
from lifelabel.images.hashes import TrainedImages
from lifelabel.images.loader import (
    DEFAULT_IMAGE_SIZE,
    SCORING_BYTES,
    Loaded,
    Loader,
    default_workers,
)
from lifelabel.images.transforms import min_side_for
from lifelabel.images.workers import WorkerDied
from lifelabel.methods import METHODS, Batch, HostBatch
from lifelabel.model.model_folder import write_model
from lifelabel.nn.cuda_graphs import without_cudnn
from lifelabel.nn.device import deterministic_kernels, resolve_device
from lifelabel.options import change_text, declared
from lifelabel.parallel.exchange import BatchExchange, SilentFolder, SilentLines
from lifelabel.parallel.group import ALONE, Group, has_begun, join_group, note_begin
from lifelabel.parallel.torchrun import local_rank, processes_here, torchrun_command
from lifelabel.registry import loaded_plugins, plugin_digests, resolve_names
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder, json_text
from lifelabel.runs.lines import JsonLines
from lifelabel.runs.summary import summarise
from lifelabel.streams import Task, TrainView
from lifelabel.streams.subsets import Part
from lifelabel.utils.files import sha256
from lifelabel.utils.memory import keep_freed_memory, release_freed_memory
from lifelabel.utils.processes import catch_stop_signals
from lifelabel.utils.text import shorten
from lifelabel.utils.transfer import to_device

__all__ = ["Result", "Run", "continues", "make_folder", "resume", "resume_with", "train"]

_WRITTEN_AGAIN = (names.CONFIG, names.ENVIRONMENT, names.METRICS)
"""Files of which a run writes another content when it goes on."""


@dataclass(frozen=True)
class Result:
    """A finished run: its folder, configuration, metrics.json and environment.json."""

    folder: Path
    config: Config = field(repr=False)
    metrics: dict[str, Any] = field(repr=False)
    environment: dict[str, Any] = field(repr=False)


def train(
    out: str | Path, options: Mapping[str, Any] | None = None, *, overwrite: bool = False,
    callback: Callback | None = None, **flags: Any,
) -> Result:  # fmt: skip
    """Train one method on one stream, into the new run folder `out`.

    Keywords have the names of the command line's flags (`method=`, `lr=`, `root=`, `tasks=`). `options` has the
    structure of a YAML configuration. Keywords win. A method of your own is given as `module:NAME` or `FILE.py:NAME`.

    >>> import tempfile
    >>> small = {"train_images": 40, "test_images": 40}
    >>> result = train(tempfile.mkdtemp(), method="fine-tuning", tasks=2, stream_options=small)
    >>> 0 < result.metrics["final"]["mAP"] < 1
    True
    """
    if not isinstance(options or {}, Mapping):
        raise UserError(f"the options must be a dict, not {shorten(options)}: give method='er', or {{'method': 'er'}}")
    named = declared(Config, "registered")
    config = Config.make(merge(options or {}, nest_flags(resolve_names(flags, named)))).with_absolute_paths()
    config = dataclasses.replace(config, plugins=tuple(loaded_plugins()))  # a file may have moved
    with join_group() as group:
        folder = make_folder(out, group)
        if group.share(lambda: continues(folder, config)):
            return resume_with(folder, config, callback, group)
        group.share(lambda: folder.check(overwrite))
        # a mistake in an option is reported before any file is changed
        with Run(config, folder, callback or Callback(), group) as run, folder.new(overwrite):
            folder.write_text(names.CONFIG, config.to_yaml())
            group.share(lambda: note_begin(folder.path))
            return run.go(None)


def resume(folder: str | Path, callback: Callback | None = None) -> Result:
    """Continue a run that was stopped or killed, from its last checkpoint, inside the task.

    Nothing is done if the run is finished.
    """
    with join_group() as group:
        run_folder = make_folder(folder, group)
        return resume_with(run_folder, group.share(lambda: _read_config(run_folder)), callback, group)


def _read_config(folder: RunFolder) -> Config:
    if not folder.is_run:
        raise UserError(f"{folder.path} is not a run folder: it has no {names.CONFIG}")
    values = folder.read_config()
    try:
        return Config.make(values)
    except UserError as error:
        raise UserError(f"{folder / names.CONFIG} cannot be used: {error}") from None


def resume_with(folder: RunFolder, config: Config, callback: Callback | None, group: Group) -> Result:
    """Continue the run of a folder in the processes of a group."""
    if group.share(lambda: folder.is_finished):
        metrics = group.share(lambda: folder.read_json(names.METRICS))
        return Result(folder.path, config, metrics, group.share(lambda: folder.read_json(names.ENVIRONMENT)))
    with Run(config, folder, callback or Callback(), group) as run, folder.locked():
        return run.go(group.share(lambda: load_checkpoint(folder, run.callback.note)))


def continues(folder: RunFolder, config: Config) -> bool:
    """Whether the processes were started again by torchrun, and the folder holds the run that they began."""
    return folder.is_run and has_begun(folder.path) and _read_config(folder) == config


def make_folder(path: str | Path, group: Group) -> RunFolder:
    """The run folder in a process of the group: only the first one writes."""
    return RunFolder(path) if group.first else SilentFolder(path)


class Run:
    """One run. It owns processes (label server, image workers): use it in a `with` statement."""

    def __init__(self, config: Config, folder: RunFolder, callback: Callback, group: Group = ALONE):
        self.config, self.folder, self.callback, self.group = config, folder, callback, group
        keep_freed_memory()
        self.device = resolve_device(config.device, METHODS[config.method].float64)
        if self.device.type == "cuda" and group.size > 1:
            if self.device.index is not None and processes_here() > 1:
                raise UserError(
                    f"--device {config.device} is one GPU for all processes of torchrun: give --device cuda"
                )
            self.device = torch.device("cuda", local_rank() % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        self.gpus = [self.device] if self.device.type == "cuda" else []
        reset_peak_memory()
        if self.gpus and torch.cuda.is_initialized():  # this process has trained before
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        self.progress = Progress()
        self.stop_requested = False
        self.extends: dict[str, Any] | None = None
        """The run that this one extends: its folder, its stream, and its training images by task."""
        self.changed_options: list[dict[str, Any]] = []
        """The options that affect figures and were changed during the run: see `new_changes`."""
        self.new_changes: list[dict[str, Any]] = []
        """The options that have changed since the checkpoint."""
        self.processes = contextlib.ExitStack()
        try:
            self.set_up()
        except BaseException:
            self.processes.close()
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.processes.close()
        if isinstance(error, Interrupted) and self.folder.is_run:
            raise error.resumable(self.resume_command) from None

    def set_up(self) -> None:
        c, group = self.config, self.group
        if c.log == "tensorboard":
            check_tensorboard()
        # an upper bound that is extended learns only the new images: the old ones are not stored
        joint = self.joint = METHODS[c.method].joint and not getattr(c.stream_options, "learned", ())
        options, on_wait = dataclasses.asdict(c.stream_options), functools.partial(Run.check_stop, weakref.proxy(self))
        self.label_server = LabelServer(c.stream, options, joint, Part.from_options(c), on_wait, group)
        self.processes.callback(self.label_server.close)
        info = self.info = self.label_server.info
        self.tasks: tuple[Task, ...] = (Task(0, info.classes, 0),) if joint else info.tasks
        self.images = c.epochs * (info.joint_size if joint else sum(info.sizes))
        check_passes(info, c)
        check_images(info, c, self.folder, self.callback.note)
        check_metrics()
        if joint and not info.complete:
            self.callback.note(
                f"{info.name} has the labels of a training image for its own task only: {c.method} learns from those, "
                "and is not an upper bound"
            )
        with torch.random.fork_rng(self.gpus):
            torch.manual_seed(c.seed)
            self.method, self.made_from = build_method(c, info, self.device, self.images, group, self.callback.note)
            self.provenance = self.method.setting.backbone.provenance
            self.random_state = get_random_state(self.gpus)
        workers = default_workers(self.device) if c.workers is None else c.workers
        size = self.image_size = c.image_size or info.image_size or DEFAULT_IMAGE_SIZE
        self.trained = TrainedImages.of_names(info.left_out, min_side_for(size, c.augment))
        scoring_bytes = SCORING_BYTES[self.device.type]
        sources = {"train": info.train, "test": info.test, **({} if info.val is None else {"val": info.val})}
        self.loader = Loader(sources, size, workers, math.ceil(c.batch_size / group.size), scoring_bytes=scoring_bytes)
        self.loader.on_wait = on_wait
        self.processes.callback(self.loader.close)
        check_step_memory(self.method, c, size, group.size, self.callback.note)
        self.exchange = BatchExchange(group, c.batch_size, size)
        # weak references: in a cycle, the files and the memory of a run would stay until the garbage collector runs
        skip, agree = (functools.partial(each, weakref.proxy(self)) for each in (Run.skip_image, Run.agree_to_stop))
        self.evaluator = Evaluator(
            c, self.folder, group, self.method, self.label_server, self.loader, skip, on_wait, agree
        )

    def go(self, state: dict[str, Any] | None) -> Result:
        """Run to the end, from the beginning or from a checkpoint."""
        with torch.random.fork_rng(self.gpus), deterministic_kernels(), catch_stop_signals(self.request_stop):
            set_random_state(self.random_state, self.gpus)
            if state is None and self.info.learned:
                raise UserError(f"{self.folder.path} extends a run and has no checkpoint: use `lifelabel extend` again")
            history_kept, skipped_kept = self.restore(state) if state else ((), ())
            self.group.share(lambda: self.check_folder(state))
            if self.progress.task < len(self.tasks):
                self.history = self.open_lines(names.HISTORY, *history_kept)
                self.events = self.make_log()
                on_line = self.events.losses if self.events else None
                diverged = functools.partial(Run.diverged, weakref.proxy(self))
                self.losses = LossHistory(self.history, self.callback.steps, diverged, on_line)
                self.skipped = self.open_lines(names.SKIPPED, *skipped_kept)
                if state is None:
                    self.list_missing()
                self.saver = AsyncSaver(functools.partial(save_checkpoint, self.folder), self.device)
                self.started = self.saved = time.monotonic()
                self.callback.begin(self.config, self.tasks, self.images, self.progress.task, self.progress.images)
                self.label_server.begin(self.progress.task)
                with contextlib.ExitStack() as at_exit:  # in reverse order, and all of them in any case
                    log_close = [self.events.close] if self.events else []
                    closes = (self.callback.end, *log_close, self.skipped.close, self.history.close, self.saver.close)
                    for close in closes:
                        at_exit.callback(close)
                    self.run_tasks()
        summary = self.summary()
        self.folder.write_json(names.METRICS, summary)  # after the last checkpoint: it marks a finished run
        environment = self.group.share(lambda: self.folder.read_json(names.ENVIRONMENT))
        return Result(self.folder.path, self.config, summary, environment)

    def check_folder(self, state: dict[str, Any] | None) -> None:
        """Check the SHA-256 of the files written before a checkpoint, and report changed options.

        config.yaml is compared by its options. If its bytes differ, it is written again. Changes of options are
        recorded, unless training is complete.
        """
        folder, config, path = self.folder, self.config, self.folder / names.CONFIG
        changes, recorded = self.new_changes, recorded_digests(state) if state else folder.digests
        for name, what in folder.changes(recorded).items():
            if name in recorded and name not in _WRITTEN_AGAIN:
                raise UserError(
                    f"{folder / name} is not as the run wrote it ({what}): restore it from a copy, or run again with "
                    "--config and --overwrite"
                )
        folder.digests = recorded
        if state and self.progress.task == len(self.tasks):
            changes, config = [], Config.make(state["config"])
        for change in changes:
            self.callback.note(change_text(change))
            if affects_figures(config, change["option"]):
                self.changed_options.append(change)
        if sha256(path) != recorded.get(names.CONFIG):
            if recorded and not changes:
                self.callback.note(
                    f"{path} is not as the run wrote it: it is written again with the options of the run"
                )
            folder.write_text(names.CONFIG, config.to_yaml())

    def open_lines(self, name: str, *kept: Any) -> JsonLines:
        return JsonLines(self.folder / name, *kept) if self.group.first else SilentLines()

    def make_log(self) -> EventLog | None:
        """The log for TensorBoard, with the points before the checkpoint if the run resumes; None: no log."""
        if self.config.log == "none" or not self.group.first:
            return None
        log = EventLog(self.folder, self.config, self.info.tasks, self.callback.note)
        log.replay(self.folder / names.HISTORY, self.progress.records, self.method.matrix())
        return log

    def run_tasks(self) -> None:
        try:
            while self.progress.task < len(self.tasks):
                self.run_task()
        except WorkerDied:
            self.check_stop()  # a stop signal may have reached all processes
            raise UserError(
                "a process that decodes images was killed; if memory was short, give fewer --workers. Resume with: "
                f"{self.resume_command}"
            ) from None

    def run_task(self) -> None:
        """Train on one task, then evaluate. A task that was learned before is only evaluated."""
        p = self.progress
        if p.task >= self.info.learned:
            self.learn_task()
        self.evaluate()
        p.task, p.step, p.learned, p.skipped = p.task + 1, 0, 0, 0
        self.group.share(self.write_results)
        self.save()
        release_freed_memory()  # of the evaluation
        self.callback.evaluated(p.records[-1])
        if self.events:
            self.events.evaluated(p.records, self.method.matrix())
        if p.task < len(self.tasks):
            self.agree_to_stop()

    def learn_task(self) -> None:
        p = self.progress
        view = self.label_server.joint_view() if self.joint else self.label_server.view(p.task)
        if len(self.method.tasks) == p.task:
            self.method.begin_task(view.task.classes)
            if self.method.counts_labels:
                self.method.count_labels(view.labels.cooccurrence())
        passes = TaskPasses(self.config, view, self.info.train, p.task)
        batch: Batch | None = None

        def stop_here() -> None:
            """A stop does not wait for the next batch: a worker may not answer. Several processes must agree on it."""
            if self.stop_requested and self.group.size == 1:
                self.end_step(batch, stop=True)

        for own in self.loader.batches(passes.jobs(p.step, self.group), stop_here):
            rows, number = passes.batch(p.step), passes.number(p.step)
            if number and not p.step % passes.steps:
                self.begin_pass(number)
            loaded, stop, due = self.exchange(own, len(rows), self.stop_requested, self.checkpoint_due())
            if (p.skipped + len(loaded.bad)) / len(view) > self.config.max_skipped and not self.config.strict:
                self.stop_before(batch, loaded.bad, len(view))
            self.folder.check_place()
            p.step += 1
            p.skipped += len(loaded.bad)
            for row, reason in loaded.bad:
                self.skip_image("train", row, reason)
            self.note_trained(view.rows[rows[loaded.good]], loaded)
            if len(loaded.good):
                batch = self.make_batch(view, rows[loaded.good], loaded, first_pass=not number)
                p.images += len(loaded.good)
                p.learned += len(loaded.good)
                self.callback.before_step()
                losses = check_losses(self.method.observe(batch), self.config.method)
                shown = number + 1 if self.config.epochs > 1 else None
                self.losses.add(PendingStep(p.task, p.step, len(loaded.good), p.images, losses, shown))
            elif p.step == passes.steps and not p.learned:
                raise UserError(
                    f"no image of {self.tasks[p.task].text} could be read: see {self.folder / names.SKIPPED}"
                )
            if self.group.size == 1:  # one process need not agree with others, and decides after the step
                stop, due = self.stop_requested, self.checkpoint_due()
            if p.step == passes.total or due or stop:
                self.end_step(batch, stop)
        self.method.end_task()
        if not self.joint:
            self.evaluator.validate(p.task)

    def note_trained(self, rows: np.ndarray, loaded: Loaded) -> None:
        """Keep the hashes of a batch of the first pass: these images are not used to evaluate the model."""
        if loaded.hashes is not None:
            self.trained.add(map(self.info.train.name, rows.tolist()), loaded.hashes)
            self.trained.add(self.info.train.name(row) for row, _ in loaded.bad)

    def begin_pass(self, number: int) -> None:
        """Begin another pass over the images of a task."""
        self.progress.skipped = 0  # an image that cannot be read counts once
        if number == 1:  # a method may do less in later passes: the recording of the first one is not needed any more
            self.method.recorder.reset()

    def checkpoint_due(self) -> bool:
        return time.monotonic() - self.saved >= self.config.checkpoint_seconds and not self.saver.busy

    def end_step(self, batch: Batch | None, stop: bool) -> None:
        """Write a checkpoint between two steps. Then the run ends, if the processes have agreed on it."""
        self.losses.flush()
        if batch:
            self.check_scores(batch)
        self.save()
        self.check_stop(stop)

    def stop_before(self, batch: Batch | None, bad: Sequence[tuple[int, str]], images: int) -> NoReturn:
        """Too many training images of a task cannot be read. Save the state before the step that has the `bad` ones.

        They are read again when the run resumes: their lines in skipped.jsonl come after those of the checkpoint.
        """
        self.end_step(batch, stop=False)
        count = self.progress.skipped + len(bad)
        for row, reason in bad:
            self.skip_image("train", row, reason)
        raise self.too_many_skipped(f"{count:,} of {images:,} training images")

    def too_many_skipped(self, what: str) -> UserError:
        self.saver.wait()
        return UserError(
            f"{self.tasks[self.progress.task].text}: {what} cannot be read, more than max_skipped "
            f"{self.config.max_skipped:g} allows: {self.folder / names.SKIPPED} lists them; restore them, or raise "
            f"max_skipped in {self.folder / names.CONFIG}, and resume with: {self.resume_command}"
        )

    def make_batch(self, view: TrainView, index: np.ndarray, loaded: Loaded, first_pass: bool) -> Batch:
        images = self.method.setting.backbone.normalize(loaded.pixels)
        labels = view.labels.take(index).dense()
        known = view.known(index)
        if known is None:
            known = np.ones_like(labels)
        y, mask = (to_device(torch.from_numpy(array), self.device) for array in (labels, known))
        return Batch(images, y.float(), mask, view.classes, HostBatch(loaded.pixels, labels, known), first_pass)

    def evaluate(self) -> None:
        """Score every test image, and add the record of the metrics."""
        p = self.progress
        done = len(self.info.tasks) if self.joint else p.task + 1
        try:
            p.records.append(self.evaluator.evaluate(done, p.skipped))
        except FloatingPointError as error:
            raise self.diverged(p.step, str(error)) from None

    def skip_image(self, split: str, row: int, reason: str) -> None:
        """An image cannot be read: record it, or stop with --strict."""
        p = self.progress
        source, known = (self.info.train, p.bad_train) if split == "train" else (self.info.test, p.bad_test)
        if self.config.strict:
            raise UserError(
                f"{split} image {source.name(row)}: {reason}; repair it, or leave out --strict to skip it (to resume: "
                f"strict: false in {self.folder / names.CONFIG}, then --resume)"
            )
        if row in known:  # recorded in an earlier task or evaluation
            return
        if not p.bad_train and not p.bad_test:
            self.callback.note(f"{source.name(row)}: {reason}; such images are skipped and listed in {names.SKIPPED}")
        known.add(row)
        self.skipped.write({"split": split, "image": source.name(row), "reason": reason})
        count, images = len(p.bad_test), len(self.info.test_rows)
        if split == "test" and count / images > self.config.max_skipped:
            raise self.too_many_skipped(f"{count:,} of {images:,} test images")

    def list_missing(self) -> None:
        """List the images without a file in skipped.jsonl."""
        for split, source in (("train", self.info.train), ("test", self.info.test)):
            for row in np.flatnonzero(~source.present).tolist():
                self.skipped.write({"split": split, "image": source.name(row), "reason": "no such file"})

    @torch.no_grad()
    def check_scores(self, batch: Batch) -> None:
        """Finite weights can still give scores that are not finite: check those of the last batch."""
        with without_cudnn(len(batch.images) < self.config.batch_size):
            scores = self.method.scores(batch.images)
        if not bool(scores.isfinite().all()):
            raise self.diverged(self.progress.step, "the scores are not finite")

    def diverged(self, step: int, what: str) -> Diverged:
        """The error for a run that diverged, with its last good checkpoint."""
        self.saver.wait()
        state = load_checkpoint(self.folder)
        last = "there was no checkpoint yet"
        if state:
            position = f"{self.tasks[state['task']].text}, step {state['step']}"
            last = f"the last good checkpoint ({position}) is {self.folder / names.CHECKPOINT}"
        return Diverged(
            f"{self.tasks[self.progress.task].text}, step {step}: {what}; stopped, {last}. Lower lr, backbone_lr or "
            f"later_backbone_lr in {self.folder / names.CONFIG} and continue with --resume, or start again"
        )

    def save(self) -> None:
        """Write a checkpoint: everything needed to continue exactly from here."""
        p, now = self.progress, time.monotonic()
        method = self.method.state_dict()
        check_state(method, self.config.method)
        if not all_finite(method):
            raise self.diverged(p.step, "the weights are not finite")
        if not self.group.first:
            return
        p.seconds, self.started = p.seconds + now - self.started, now
        self.saver.save(
            {
                **self.made_from, "plugin_files": plugin_digests(), "config": self.config.to_dict(), **p.to_dict(),
                "resolved": self.resolved(), "changed_options": self.changed_options,
                "image_size": self.image_size, "extends": self.extends, "method": method,
                "trained": torch.from_numpy(self.trained.pairs.view(np.int64)),
                "random_state": get_random_state(self.gpus), "history_bytes": self.history.sync(),
                "skipped_bytes": self.skipped.sync(), "history_sha256": self.history.sha256,
                "skipped_sha256": self.skipped.sha256, "digests": self.folder.digests,
            }
        )  # fmt: skip
        if not self.config.checkpoint_seconds:  # a checkpoint after every step
            self.saver.wait()
        self.saved = time.monotonic()

    def restore(self, state: dict[str, Any]) -> tuple[tuple[int, str | None], tuple[int, str | None]]:
        """Restore a checkpoint. Returns length and SHA-256 of history.jsonl and of skipped.jsonl that belong to it."""
        try:
            check_same_run(state, self.made_from, self.config, self.folder)
            for name in state["plugin_files"].items() - plugin_digests().items():
                self.callback.note(f"the plug-in {name[0]} has changed since the checkpoint was written")
            self.method.load_state_dict(state["method"])
            set_random_state(state["random_state"], self.gpus)
            self.progress, self.extends = Progress.from_dict(state), extended_run(state)
            self.trained.add_pairs(trained_pairs(state))
            sizes = (self.info.joint_size,) if self.joint else self.info.sizes
            steps = [self.config.epochs * math.ceil(size / self.config.batch_size) for size in sizes]
            self.progress.check(len(self.tasks), max(self.info.learned - 1, 0), steps)
            recorded_digests(state)  # checked here; `check_folder` uses them
            self.changed_options = changed_options(state)
            self.new_changes = new_changes(state, self.config, self.resolved(), self.progress)
            return kept_lines(state, "history"), kept_lines(state, "skipped")
        except (RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(
                f"{self.folder / names.CHECKPOINT} does not fit {self.folder / names.CONFIG}: {reason}"
            ) from None

    def summary(self) -> dict[str, Any]:
        about = {"stream": self.info.name, "method": self.config.method, "fidelity": self.config.fidelity}
        p = self.progress
        skipped = {"train": len(p.bad_train), "test": len(p.bad_test)}
        return {**about, "seed": self.config.seed, **summarise(p.records, self.info.tasks), "skipped": skipped}

    def write_results(self) -> None:
        matrix = self.method.matrix()
        if matrix is not None and self.progress.task == len(self.tasks):  # the last matrix has those of all tasks
            sizes = [len(task.classes) for task in self.info.tasks]  # a joint run has one task
            self.folder.write_matrices(matrix, sizes, self.info.classes, self.label_server.truth())
        self.write_model()
        environment, finished = self.environment(), self.progress.task == len(self.tasks)
        if finished:
            self.history.sync()
            self.skipped.sync()
            metrics = hashlib.sha256(json_text(self.summary()).encode()).hexdigest()  # written last
            lines = {names.HISTORY: self.history.sha256, names.SKIPPED: self.skipped.sha256}
            digests = {**self.folder.digests, **lines, names.METRICS: metrics}
            environment["sha256"] = {name: digests[name] for name in sorted(digests) if name != names.ENVIRONMENT}
        self.folder.write_json(names.ENVIRONMENT, environment)
        if not finished:
            self.folder.write_json(names.METRICS, self.summary())

    def write_model(self) -> None:
        """Write the model folder after the last task, and with `keep_tasks` one after every task."""
        p, finished = self.progress, self.progress.task == len(self.tasks)
        if not (finished or self.config.keep_tasks):
            return
        network = self.evaluator.usable_network()
        if network is None:
            if finished:
                self.callback.note(
                    f"method {self.config.method} has no network of its own for use after training: no model folder is "
                    "written (see Method.network)"
                )
            return
        record = p.records[-1]
        final = self.summary()["final"] if finished else {**record["seen"], "ap": record.get("ap")}
        training: dict[str, Any] = {
            **machine(self.device), "seed": self.config.seed, "images": self.images_by_task(), "final": final,
            "epochs": self.config.epochs, "changed_options": self.changed_options, "extends": self.extends,
        }  # fmt: skip
        info = describe_model(self.config, self.info, self.method, network, self.image_size, training)
        folders = [names.model_of_task(p.task)] if self.config.keep_tasks else []
        for folder in [*folders, names.MODEL] if finished else folders:
            digests = write_model(self.folder / folder, network, info, self.trained)
            self.folder.digests |= {f"{folder}/{name}": digest for name, digest in digests.items()}

    def images_by_task(self) -> list[int | None]:
        """The number of training images of each task so far, also of those that were learned before."""
        earlier = self.extends["images"] if self.extends else []
        return [*earlier, *self.info.sizes[len(earlier) : None if self.joint else self.progress.task]]

    def resolved(self) -> dict[str, str]:
        """The device and the precision of the run, which `auto` leaves to the machine."""
        return {"device": self.device.type, "precision": self.method.setting.precision}

    def environment(self) -> dict[str, Any]:
        """What the run ran on, and what it has cost so far."""
        p = self.progress
        seconds = p.seconds + time.monotonic() - self.started
        return {
            **machine(self.device),
            "processes": self.group.size,
            "label": self.config.label,
            "equal": self.config.equal_options(),
            "preset": self.config.has_preset,
            "changed_options": self.changed_options,
            "precision": self.method.setting.precision,
            "recorded": self.method.setting.record,
            "compiled": self.method.setting.compile,
            "seconds": round(seconds, 3),
            "images_per_second": round(p.images / seconds, 2) if seconds else None,
            **memory(self.device),
            "footprint": dataclasses.asdict(self.method.footprint()),
            "stream_fingerprint": self.info.fingerprint,
            "images_by_task": self.images_by_task(),
            "images_missing": sum(self.info.missing),
            "images_skipped": len(p.bad_train) + len(p.bad_test),
            "weights": self.provenance.to_dict(),
        }

    @property
    def resume_command(self) -> str:
        plugins = [word for plugin in self.config.plugins for word in ("--plugin", plugin)]
        return shlex.join([*torchrun_command(), "train", "--resume", str(self.folder.path), *plugins])

    def check_stop(self, agreed: bool = False) -> None:
        """Raise `Stopped` if a stop was requested. The last checkpoint is written first.

        Several processes must have agreed on it.
        """
        if agreed or (self.stop_requested and self.group.size == 1):
            self.saver.wait()
            raise Stopped(f"stopped; resume with: {self.resume_command}")

    def agree_to_stop(self) -> None:
        """Raise `Stopped` in all processes if one of them was asked to stop."""
        self.check_stop(any(self.group.collect(self.stop_requested)))

    def request_stop(self) -> None:
        """The first Ctrl-C or SIGTERM: the step ends and a checkpoint is written. A second Ctrl-C is not caught."""
        if not self.stop_requested:
            self.callback.stopping()
        self.stop_requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
