"""The training loop: over the tasks of a run, and over the batches of each task."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lifelabel.config.config import Config
from lifelabel.engine.checkpoint import Checkpoints, Resumed
from lifelabel.engine.checks import check_losses
from lifelabel.engine.evaluator import Evaluator
from lifelabel.engine.results import write_results
from lifelabel.engine.setup import Run
from lifelabel.engine.skipped import SkippedImages
from lifelabel.engine.tensorboard import EventLog
from lifelabel.errors import Diverged, NotFinite, UserError
from lifelabel.images.loader import Job, Loaded
from lifelabel.images.source import ImageSource
from lifelabel.images.workers import WorkerDied
from lifelabel.methods import Batch, HostBatch, Method
from lifelabel.nn.cuda_graphs import without_cudnn
from lifelabel.parallel.exchange import BatchExchange, SilentLines
from lifelabel.parallel.group import Group
from lifelabel.runs import names
from lifelabel.runs.lines import JsonLines
from lifelabel.streams import TrainView
from lifelabel.streams.order import training_order
from lifelabel.utils.memory import release_freed_memory
from lifelabel.utils.transfer import HostCopy, to_device

_INTERVAL = 10
"""The losses of this many steps are copied to the host together."""
_Step = tuple[dict[str, Any], int, dict[str, Tensor]]
"""The line of a step without its losses, its number of images, and its losses, which are still on the device."""


class Training:
    """The training of a run, from its beginning or from a checkpoint."""

    def __init__(self, run: Run, resumed: Resumed | None):
        self.run = run
        kept = resumed or Resumed()
        history = _open_lines(run, names.HISTORY, *kept.history)
        self.events = _open_log(run)
        skipped = _open_lines(run, names.SKIPPED, *kept.skipped)
        self.lines = {names.HISTORY: history, names.SKIPPED: skipped}
        self.losses = LossHistory(history, run.callback.steps, self.events.losses if self.events else None)
        self.skipped = SkippedImages(run, skipped)
        if resumed is None:
            self.skipped.list_missing()
        self.checkpoints = Checkpoints(run, history, skipped)
        self.evaluator = Evaluator(run, self.skipped)
        self.exchange = BatchExchange(run.group, run.config.batch_size, run.image_size)
        self.batch: Batch | None = None
        """The last batch that was learned."""

    def loop(self) -> None:
        """Train on the tasks that are left, and evaluate after each one."""
        run, p = self.run, self.run.progress
        run.callback.begin(run.config, run.tasks, run.images, p.task, p.images)
        run.label_server.begin(p.task)
        with contextlib.ExitStack() as at_exit:  # in reverse order, and all of them in any case
            at_exit.callback(run.callback.end)
            for each in (self.events, *self.lines.values(), self.checkpoints):
                if each:
                    at_exit.callback(each.close)
            try:
                while p.task < len(run.tasks):
                    if p.task >= run.info.learned:  # one that was learned before is only evaluated
                        self.learn_task()
                    self.evaluate_task()
            except WorkerDied:
                run.stopping.check()  # a stop signal may have reached all processes
                raise UserError(
                    "a process that decodes images was killed; if memory was short, give fewer --workers. Resume with: "
                    f"{run.stopping.resume_command}"
                ) from None
            except NotFinite as error:
                raise self.diverged(error) from None

    def learn_task(self) -> None:
        """Train on the batches of a task that are left. A checkpoint is written from time to time, and at the end."""
        run, p, method = self.run, self.run.progress, self.run.method
        view = run.label_server.joint_view() if run.joint else run.label_server.view(p.task)
        if len(method.tasks) == p.task:
            method.begin_task(view.task.classes)
            if method.counts_labels:
                method.count_labels(view.labels.cooccurrence())
        passes = TaskPasses(run.config, view, run.info.train, p.task)
        for own in run.loader.batches(passes.jobs(p.step, run.group), self.stop_while_waiting):
            rows, number = passes.batch(p.step), passes.number(p.step)
            if number and not p.step % passes.steps:
                self.begin_pass(number)
            loaded, stop, due = self.exchange(own, len(rows), run.stopping.requested, self.checkpoints.due)
            if self.skipped.exceed(loaded.bad, len(view)):
                self.save()
                raise self.skipped.refuse(loaded.bad, len(view))
            run.folder.check_place()
            p.step += 1
            p.skipped += len(loaded.bad)
            for row, reason in loaded.bad:
                self.skipped.add("train", row, reason)
            self.note_trained(view.rows[rows[loaded.good]], loaded)
            if len(loaded.good):
                self.learn(make_batch(method, view, rows[loaded.good], loaded, not number), number)
            elif p.step == passes.steps and not p.learned:
                what = f"no image of {run.tasks[p.task].text} could be read"
                raise UserError(f"{what}: see {run.folder / names.SKIPPED}")
            if run.group.size == 1:  # one process need not agree with others, and decides after the step
                stop, due = run.stopping.requested, self.checkpoints.due
            if p.step == passes.total or due or stop:
                self.save()
                run.stopping.check(stop)
        self.batch = None
        method.end_task()
        if not run.joint:
            self.evaluator.validate(p.task)

    def learn(self, batch: Batch, number: int) -> None:
        """One step of the method, in pass `number`."""
        run, p, images = self.run, self.run.progress, len(batch.images)
        self.batch = batch
        p.images += images
        p.learned += images
        run.callback.before_step()
        losses = check_losses(run.method.observe(batch), run.config.method)
        line = {"task": p.task + 1, "step": p.step, "images": p.images}
        self.losses.add(line | ({"pass": number + 1} if run.config.epochs > 1 else {}), images, losses)

    def begin_pass(self, number: int) -> None:
        """Begin another pass over the images of a task."""
        self.run.progress.skipped = 0  # an image that cannot be read counts once
        if number == 1:  # a method may do less in later passes: the recording of the first one is of no further use
            self.run.method.recorder.reset()

    def note_trained(self, rows: np.ndarray, loaded: Loaded) -> None:
        """Keep the hashes of a batch of the first pass: these images are not used to evaluate the model."""
        if loaded.hashes is not None:
            source, trained = self.run.info.train, self.run.trained
            trained.add(map(source.name, rows.tolist()), loaded.hashes)
            trained.add(source.name(row) for row, _ in loaded.bad)

    def evaluate_task(self) -> None:
        """Score every test image, and write the results and a checkpoint."""
        run, p = self.run, self.run.progress
        p.records.append(self.evaluator.evaluate(len(run.info.tasks) if run.joint else p.task + 1))
        p.task, p.step, p.learned, p.skipped = p.task + 1, 0, 0, 0
        run.group.share(lambda: write_results(run, self.evaluator, self.lines, self.checkpoints.seconds()))
        self.checkpoints.save()
        release_freed_memory()  # of the evaluation
        run.callback.evaluated(dict(p.records[-1]))
        if self.events:
            self.events.evaluated(p.records, run.method.matrix())
        if p.task < len(run.tasks):
            run.stopping.agree()

    def save(self) -> None:
        """Write a checkpoint between two steps, if the losses, scores and weights are finite."""
        self.losses.flush()
        if self.batch:
            self.check_scores(self.batch)
        self.checkpoints.save()

    @torch.no_grad()
    def check_scores(self, batch: Batch) -> None:
        """Finite weights can still give scores that are not finite: check those of the last batch."""
        with without_cudnn(len(batch.images) < self.run.config.batch_size):
            scores = self.run.method.scores(batch.images)
        if not bool(scores.isfinite().all()):
            raise NotFinite("the scores are not finite")

    def stop_while_waiting(self) -> None:
        """A stop does not wait for the next batch: a worker may not answer."""
        if self.run.stopping.now:
            self.save()
            self.run.stopping.check()

    def diverged(self, error: NotFinite) -> Diverged:
        """The error for a run that diverged, with its last good checkpoint."""
        run, p = self.run, self.run.progress
        state = self.checkpoints.last()
        last = "there was no checkpoint yet"
        if state:
            position = f"{run.tasks[state['task']].text}, step {state['step']}"
            last = f"the last good checkpoint ({position}) is {run.folder / names.CHECKPOINT}"
        step = p.step if error.step is None else error.step
        return Diverged(
            f"{run.tasks[p.task].text}, step {step}: {error}; stopped, {last}. Lower lr, backbone_lr or "
            f"later_backbone_lr in {run.folder / names.CONFIG} and continue with --resume, or start again"
        )


class TaskPasses:
    """The `epochs` passes over the images of a task. Each one has its own order and its own augmentation.

    The steps of a task are numbered through all passes, from 0. Everything depends on the configuration and the task
    only, so a run resumes at any step.
    """

    def __init__(self, config: Config, view: TrainView, images: ImageSource, task: int):
        self.config, self.view, self.task = config, view, task
        self.steps = math.ceil(len(view) / config.batch_size)
        """The number of steps of one pass."""
        self.total = self.steps * config.epochs
        # the loader reads ahead: at the end of a pass two orders are in use
        self._order: Callable[[int], np.ndarray] = functools.lru_cache(maxsize=2)(
            lambda number: training_order(view.rows, images, config.seed, task, config.image_order, number)
        )

    def number(self, step: int) -> int:
        """The pass of a step: 0 is the first one."""
        return step // self.steps

    def batch(self, step: int) -> np.ndarray:
        """The images of a step, as positions in the view."""
        number, place = divmod(step, self.steps)
        return self._order(number)[place * self.config.batch_size : (place + 1) * self.config.batch_size]

    def jobs(self, start: int, group: Group) -> Iterator[Job]:
        """The images of this process in the steps from `start` on, for the loader."""
        for step in range(start, self.total):
            batch, number = self.batch(step), self.number(step)
            seed = (self.config.seed, self.task, *([number] if number else []))
            rows = self.view.rows[batch[group.rows(len(batch))]]
            yield Job("train", rows, self.config.augment, seed, hashed=not number)


class LossHistory:
    """Writes one line per step, without waiting for the device.

    The losses of a group of steps are copied to the host, and written when the next group is complete. Then the copy
    has arrived. A loss that is not finite raises `NotFinite`. `on_steps` is called with the task index, the number of
    images and the last losses of each group, and `on_line` with each line.
    """

    def __init__(
        self, file: JsonLines, on_steps: Callable[[int, int, dict[str, float]], None],
        on_line: Callable[[dict[str, Any]], None] | None = None,
    ):  # fmt: skip
        self.file, self.on_steps, self.on_line = file, on_steps, on_line
        self._waiting: list[_Step] = []
        self._copied: list[_Step] = []
        self._copy: HostCopy | None = None

    def add(self, line: dict[str, Any], images: int, losses: dict[str, Tensor]) -> None:
        self._waiting.append((line, images, losses))
        if len(self._waiting) == _INTERVAL:
            self._exchange()

    def flush(self) -> None:
        """Write the losses of all steps."""
        self._exchange()
        self._exchange()

    def _exchange(self) -> None:
        """Start to copy the losses of the waiting steps, and write those that were copied before."""
        steps, copy = self._copied, self._copy
        self._copied, self._waiting, self._copy = self._waiting, [], None
        waiting = [loss for _, _, losses in self._copied for loss in losses.values()]
        if waiting:  # a method, or a part of its steps, may have no loss
            self._copy = HostCopy(torch.stack(waiting))
        values = iter(copy.wait().tolist() if copy else ())
        for line, _, on_device in steps:
            losses = line["losses"] = {name: next(values) for name in on_device}
            for name, value in losses.items():
                if not math.isfinite(value):
                    raise NotFinite(f"the loss '{name}' is {value}", line["step"])
            self.file.write(line)
            if self.on_line:
                self.on_line(line)
        if steps:
            self.on_steps(line["task"] - 1, sum(images for _, images, _ in steps), losses)


def make_batch(method: Method, view: TrainView, index: np.ndarray, loaded: Loaded, first_pass: bool) -> Batch:
    """The images `index` of a view as a batch on the device."""
    images = method.setting.backbone.normalize(loaded.pixels)
    labels = view.labels.take(index).dense()
    known = view.known(index)
    if known is None:
        known = np.ones_like(labels)
    y, mask = (to_device(torch.from_numpy(array), method.setting.device) for array in (labels, known))
    return Batch(images, y.float(), mask, view.classes, HostBatch(loaded.pixels, labels, known), first_pass)


def _open_lines(run: Run, name: str, length: int, sha256: str | None) -> JsonLines:
    return JsonLines(run.folder / name, length, sha256) if run.group.first else SilentLines()


def _open_log(run: Run) -> EventLog | None:
    """The log for TensorBoard, with the points before the checkpoint if the run resumes; None: no log."""
    if run.config.log == "none" or not run.group.first:
        return None
    log = EventLog(run.folder, run.config, run.info.tasks, run.callback.note)
    log.replay(run.folder / names.HISTORY, run.progress.records, run.method.matrix())
    return log
