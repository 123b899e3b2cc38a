"""The one pass: order, seeds, devices, checkpoints. It knows no method and no stream by name."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lifelabel import weights
from lifelabel.backbones import send
from lifelabel.config import Config, merge, read_yaml, resolve_device
from lifelabel.environment import forget_peak, machine, memory
from lifelabel.errors import Stopped, UserError, short
from lifelabel.evaluate import features, score, summarise
from lifelabel.graph import embed
from lifelabel.keeper import Keeper
from lifelabel.learner import Setting
from lifelabel.loading import SCORING_BYTES, Job, Loaded, Loader, ScoredImages, default_workers
from lifelabel.methods import METHODS, Batch, Method
from lifelabel.methods.base import Host
from lifelabel.processes import asked_to_stop
from lifelabel.recording import in_passing
from lifelabel.runfolder import History, RunFolder
from lifelabel.saving import Saver, Sent, all_finite
from lifelabel.streams import Task, TrainView
from lifelabel.streams.base import task_of_class
from lifelabel.streams.parts import Part

MAY_CHANGE = (
    "lr", "backbone_lr", "later_backbone_lr", "adam_eps", "device", "compile", "checkpoint_seconds", "workers",
    "strict",
)  # fmt: skip
"""Options that may be edited in config.yaml before a run goes on; any other would make it another run."""
DEFAULT_SIZE = 224
READ_EVERY = 10
"""Steps whose losses are brought to the host together, and looked at when the next so many are done."""


class Watcher:
    """Is told what happens; the command line's draws progress bars. This one stays silent."""

    def begin(self, config: Config, tasks: Sequence[Task], images: int, task: int, learned: int) -> None: ...
    def steps(self, task: int, images: int, losses: dict[str, float]) -> None: ...
    def evaluated(self, record: dict[str, Any]) -> None: ...
    def note(self, line: str) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class Result:
    """A finished run: its folder, configuration, metrics.json and environment.json."""

    folder: Path
    config: Config = field(repr=False)
    metrics: dict[str, Any] = field(repr=False)
    environment: dict[str, Any] = field(repr=False)


@dataclass
class Progress:
    """Where a run stands: `task` tasks are done and evaluated, `step` batches of the next one have been learned."""

    task: int = 0
    step: int = 0
    images: int = 0
    seconds: float = 0.0
    records: list[dict[str, Any]] = field(default_factory=list)
    learned: int = 0
    """Images of the open task that have been learned."""
    bad_train: set[int] = field(default_factory=set)
    """Training images that could not be read, by row."""
    bad_test: set[int] = field(default_factory=set)
    """Test images that could not be read, by row."""


@dataclass(frozen=True)
class Unread:
    """A step whose losses are still on the device: its number in the task, its images, and all up to it."""

    step: int
    images: int
    so_far: int
    losses: dict[str, Tensor]


def train(
    out: str | Path, options: Mapping[str, Any] | None = None, *, overwrite: bool = False, watch: Watcher | None = None,
    **more: Any,
) -> Result:  # fmt: skip
    """Train one method over one stream, into the new run folder `out`.

    Options are those of `Config`, as a mapping, as keywords, or both (keywords win).

    >>> import tempfile
    >>> knobs = {"train_images": 40, "test_images": 40}
    >>> result = train(tempfile.mkdtemp(), method="fine-tuning", stream_options=knobs)
    >>> 0 < result.metrics["final"]["mAP"] < 1
    True
    """
    config = Config.make(merge(options or {}, more)).with_absolute_paths()  # it can then go on from any folder
    folder = RunFolder(out)
    folder.check(overwrite)
    # a mistake in an option shows before any file is touched
    with Run(config, folder, watch or Watcher()) as run, folder.new(overwrite):
        folder.write_text("config.yaml", config.to_yaml())
        return run.go(None)


def resume(folder: str | Path, watch: Watcher | None = None) -> Result:
    """Go on with a run that was stopped or killed, from its last checkpoint, inside the task."""
    at = RunFolder(folder)
    if not at.is_run:
        raise UserError(f"{at.path} is not a run folder: it has no config.yaml")
    with Run(Config.make(read_yaml(at / "config.yaml")), at, watch or Watcher()) as run, at.locked():
        return run.go(at.load_checkpoint())


class Run:
    """One run. It holds processes (the keeper of the labels, the loader's workers): use it in a `with` statement."""

    def __init__(self, config: Config, folder: RunFolder, watch: Watcher):
        self.config, self.folder, self.watch = config, folder, watch
        self.device = resolve_device(config.device)
        self.gpus = [self.device] if self.device.type == "cuda" else []
        forget_peak()
        if self.gpus and torch.cuda.is_initialized():  # this process has trained before
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        self.progress = Progress()
        self.sent: tuple[list[Unread], Sent | None] = [], None
        self.stop_asked = False
        self.processes = contextlib.ExitStack()
        try:
            self.set_up()
        except BaseException:
            self.processes.close()
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.processes.close()

    def set_up(self) -> None:
        c, joint = self.config, METHODS[self.config.method].joint
        part = Part(c.task_order, c.first_tasks, c.hold_out)
        self.keeper = Keeper(c.stream, dataclasses.asdict(c.stream_options), joint, part)
        self.processes.callback(self.keeper.close)
        o = self.outline = self.keeper.outline
        self.tasks: tuple[Task, ...] = (Task(0, o.classes, 0),) if joint else o.tasks
        self.images = o.joint_size if joint else sum(o.sizes)
        self.check_images()
        if joint and not o.complete:
            self.watch.note(
                f"{o.name} knows the labels of a training image for its own task alone: {c.method} learns from those, "
                "and is less than an upper bound"
            )
        with torch.random.fork_rng(self.gpus):
            torch.manual_seed(c.seed)
            self.method = self.build_method()
            self.random_state = self.get_random_state()
        workers = default_workers(self.device) if c.workers is None else c.workers
        size = c.image_size or o.image_size or DEFAULT_SIZE
        scoring = SCORING_BYTES[self.device.type]
        self.loader = Loader({"train": o.train, "test": o.test}, size, workers, c.batch_size, scoring_bytes=scoring)
        self.processes.callback(self.loader.close)
        self.test = ScoredImages(self.loader, o.test_rows, functools.partial(self.skip, "test"))

    def check_images(self) -> None:
        """Say what is missing, and stop where nothing could be learned or scored."""
        o = self.outline
        for line in o.problems:
            self.watch.note(line)
        lost = sum(o.missing)
        if lost:
            row, source = next((int(np.argmin(s.present)), s) for s in (o.train, o.test) if not s.present.all())
            every = lost + o.joint_size + len(o.test_rows)
            what = f"{lost:,} of {every:,} images have no file, such as {source.name(row)}"
            root = getattr(self.config.stream_options, "root", None)
            where = f"under {root}" if root else "(no folder was given)"
            none = not o.joint_size or not len(o.test_rows)
            if none and o.image_size:
                raise UserError(f"{o.name} is drawn, and its manifest holds no pictures: train with --stream {o.name}")
            if none and self.folder.is_run:
                raise UserError(f"{what} {where}: if they moved, say so in {self.folder / 'config.yaml'} (root)")
            if none:
                raise UserError(f"{what} {where}: give the folder of the images with --root DIR")
            if self.config.strict:
                raise UserError(f"{what} {where}: leave out --strict to train without them")
            self.watch.note(f"{what} {where}: left out")
        if not len(o.test_rows):
            raise UserError(f"stream {o.name} has no test image: nothing could be scored")
        for task, size in zip(o.tasks, o.sizes, strict=True):
            if not size:
                names = ", ".join(task.classes)
                raise UserError(
                    f"task {task.index + 1} ({names}) has no training image that has a file: "
                    "`lifelabel data inspect` tells what is missing; take its classes out, or give the images"
                )

    def go(self, state: dict[str, Any] | None) -> Result:
        """Run to the end from the beginning, or from a checkpoint."""
        with torch.random.fork_rng(self.gpus), asked_to_stop(self.ask):
            self.set_random_state(self.random_state)
            history_bytes, skipped_bytes = self.restore(state) if state else (0, 0)
            if self.progress.task < len(self.tasks):
                self.history = History(self.folder / "history.jsonl", history_bytes)
                self.skipped = History(self.folder / "skipped.jsonl", skipped_bytes)
                if state is None:
                    self.list_missing()
                self.saver = Saver(self.folder.save_checkpoint, self.device)
                self.started = self.saved = time.monotonic()
                self.watch.begin(self.config, self.tasks, self.images, self.progress.task, self.progress.images)
                self.keeper.begin(self.progress.task)
                with contextlib.ExitStack() as at_the_end:  # the last first, and all of them whatever comes
                    for close in (self.watch.end, self.skipped.close, self.history.close, self.saver.close):
                        at_the_end.callback(close)
                    self.run_tasks()
        return Result(self.folder.path, self.config, self.summary(), self.folder.read_json("environment.json"))

    def run_tasks(self) -> None:
        try:
            while self.progress.task < len(self.tasks):
                self.run_task()
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise UserError(
                "a process that decodes images was killed; if memory was short, give fewer --workers. Go on with: "
                f"lifelabel train --resume {self.folder.path}"
            ) from None

    def build_method(self) -> Method:
        c = self.config
        names: list[str] = list(self.outline.classes)
        vectors, missing = embed(names, c.words, c.word_dim, c.word_norm)
        if missing:
            self.watch.note(
                f"{len(missing)} label words are not in {c.words} and get a fixed vector: {', '.join(missing)}"
            )
        self.words = hashlib.sha256(vectors.tobytes()).hexdigest()
        table = torch.from_numpy(vectors).to(self.device)
        row = {name: i for i, name in enumerate(names)}
        steps = math.ceil(self.images / c.batch_size)
        setting = Setting.of(c, lambda labels: table[[row[label] for label in labels]], self.device, steps)
        self.provenance = setting.backbone.provenance
        note = weights.check(self.provenance, names, self.outline.dataset, c.allow_seen_weights)
        if note:
            self.watch.note(note)
        return METHODS[c.method](setting, c.method_options)

    def run_task(self) -> None:
        """One pass over one task's images, each used once, then the evaluation."""
        p, size = self.progress, self.config.batch_size
        view = self.keeper.joint_view() if self.method.joint else self.keeper.view(p.task)
        if len(self.method.tasks) == p.task:
            self.method.begin_task(view.task.classes)
        order = np.random.default_rng([self.config.seed, p.task]).permutation(len(view))
        steps = math.ceil(len(view) / size)
        unread: list[Unread] = []
        batch: Batch | None = None
        for loaded in self.loader.batches(self.jobs(view, order, p.step, steps)):
            rows = order[p.step * size : (p.step + 1) * size]
            p.step += 1
            for row, reason in loaded.bad:
                self.skip("train", row, reason)
            if len(loaded.good):
                batch = self.to_batch(view, rows[loaded.good], loaded)
                p.images += len(loaded.good)
                p.learned += len(loaded.good)
                unread.append(Unread(p.step, len(loaded.good), p.images, self.method.observe(batch)))
            elif p.step == steps and not p.learned:
                raise UserError(f"no image of task {p.task + 1} could be read: see {self.folder / 'skipped.jsonl'}")
            waited = time.monotonic() - self.saved >= self.config.checkpoint_seconds and not self.saver.busy
            due = p.step == steps or waited
            if due or self.stop_asked or len(unread) == READ_EVERY:
                self.send_losses(unread)
                unread = []
            if due or self.stop_asked:
                self.send_losses([])
            stop = self.stop_asked and not unread and not self.sent[0]  # a signal can come between any two lines
            if due or stop:
                if batch:
                    self.check_scores(batch)
                self.save()
            if stop:
                self.check_stop()
        self.method.end_task()
        self.evaluate()
        p.task, p.step, p.learned = p.task + 1, 0, 0
        self.write_results()
        self.save()
        self.watch.evaluated(p.records[-1])
        if p.task < len(self.tasks):
            self.check_stop()

    def jobs(self, view: TrainView, order: np.ndarray, first: int, last: int) -> Iterator[Job]:
        """Batches `first` … `last - 1` of a task, for the loader."""
        c = self.config
        for step in range(first, last):
            rows = view.rows[order[step * c.batch_size : (step + 1) * c.batch_size]]
            yield Job("train", rows, c.augment, (c.seed, self.progress.task))

    def to_batch(self, view: TrainView, places: np.ndarray, loaded: Loaded) -> Batch:
        images = self.method.setting.backbone.to_input(loaded.pixels)
        labels = view.labels.take(places).dense()
        known = view.known(places)
        if known is None:
            known = np.ones_like(labels)
        y, mask = (send(torch.from_numpy(array), self.device) for array in (labels, known))
        return Batch(images, y.float(), mask, view.task.classes, Host(loaded.pixels, labels, known))

    def evaluate(self) -> None:
        """Score every test image once, here; what the scores are worth is found out where the labels are."""
        p, m, tasks = self.progress, self.method, self.outline.tasks
        done = len(tasks) if m.joint else p.task + 1
        try:
            seen = features(m, self.test, self.check_stop)
            scores, rows = score(m, seen), self.test.rows
            for task in tasks[:-1] if done == len(tasks) else ():
                self.keeper.earlier(task.index, rows, score(m, seen, task.last))
        except FloatingPointError as error:
            raise self.diverged(p.step, str(error)) from None
        matrix = m.matrix() if self.outline.has_truth else None
        p.records.append(self.keeper.judge(done, rows, scores, matrix, m.sizes))
        if done == len(tasks) and self.config.save_scores:
            labels, allotted = self.keeper.test_labels(self.test.rows)
            self.folder.write_arrays("scores.npz", {
                "logits": scores, "labels": labels, "task_of_image": allotted,
                "task_of_class": task_of_class(tasks), "classes": np.array(self.outline.classes),
            })  # fmt: skip

    def skip(self, split: str, row: int, reason: str) -> None:
        """An image cannot be read: write it down and go on without it, or stop where the user wants that."""
        p = self.progress
        source, known = (self.outline.train, p.bad_train) if split == "train" else (self.outline.test, p.bad_test)
        if self.config.strict:
            raise UserError(
                f"{split} image {source.name(row)}: {reason}; mend it, or leave out --strict to skip it (in a run that "
                f"has begun: strict: false in {self.folder / 'config.yaml'}, then --resume)"
            )
        if row in known:  # another task has shown it, or an evaluation
            return
        if not p.bad_train and not p.bad_test:
            self.watch.note(f"{source.name(row)}: {reason}; such images are skipped, and listed in skipped.jsonl")
        known.add(row)
        self.skipped.write({"split": split, "image": source.name(row), "reason": reason})

    def list_missing(self) -> None:
        for split, source in (("train", self.outline.train), ("test", self.outline.test)):
            for row in np.flatnonzero(~source.present).tolist():
                self.skipped.write({"split": split, "image": source.name(row), "reason": "no such file"})

    def send_losses(self, unread: list[Unread]) -> None:
        """Send the losses of the last steps to the host; those that were sent before are there, and written down."""
        (rows, sent), self.sent = self.sent, (unread, None)
        if unread and unread[0].losses:
            self.sent = unread, Sent(torch.stack([torch.stack(list(each.losses.values())) for each in unread]))
        task = self.progress.task
        values = sent.read().tolist() if sent else [()] * len(rows)  # a method may have no loss
        for row, numbers in zip(rows, values, strict=True):
            named = dict(zip(row.losses, numbers, strict=True))
            for name, value in named.items():
                if not math.isfinite(value):
                    raise self.diverged(row.step, f"the loss '{name}' is {value}")
            self.history.write({"task": task + 1, "step": row.step, "images": row.so_far, "losses": named})
        if rows:
            self.watch.steps(task, sum(row.images for row in rows), named)

    @torch.no_grad()
    def check_scores(self, batch: Batch) -> None:
        """A step can leave weights that are finite and of no use: what they say of the last batch shows it."""
        with in_passing(len(batch.images) < self.config.batch_size):
            scores = self.method.scores(batch.images)
        if not bool(scores.isfinite().all()):
            raise self.diverged(self.progress.step, "the scores are not finite any more")

    def diverged(self, step: int, what: str) -> UserError:
        self.saver.wait()
        kept = self.folder.load_checkpoint()
        last = "there was no checkpoint yet"
        if kept:
            place = f"task {kept['task'] + 1}, step {kept['step']}"
            last = f"the last good checkpoint ({place}) is {self.folder / 'checkpoint.pt'}"
        return UserError(
            f"task {self.progress.task + 1}, step {step}: {what}; stopped, {last}. Lower lr, backbone_lr or "
            f"later_backbone_lr in {self.folder / 'config.yaml'} and go on with --resume, or start anew"
        )

    def save(self) -> None:
        """Checkpoint: everything the run needs to go on from here as if nothing had happened."""
        p, now = self.progress, time.monotonic()
        method = self.method.state_dict()
        if not all_finite(method):
            raise self.diverged(p.step, "the weights are not finite any more")
        p.seconds, self.started = p.seconds + now - self.started, now
        self.saver.save(
            {
                "stream": self.outline.fingerprint, "files": self.outline.files, "words": self.words,
                "weights": self.provenance.sha256, "config": self.config.to_dict(),
                **dataclasses.asdict(p), "bad_train": sorted(p.bad_train), "bad_test": sorted(p.bad_test),
                "method": method, "random_state": self.get_random_state(), "history_bytes": self.history.sync(),
                "skipped_bytes": self.skipped.sync(),
            }
        )  # fmt: skip
        if not self.config.checkpoint_seconds:  # after every step, whatever comes
            self.saver.wait()
        self.saved = time.monotonic()

    def get_random_state(self) -> dict[str, Tensor]:
        state = {"cpu": torch.get_rng_state()}
        for device in self.gpus:
            state["cuda"] = torch.cuda.get_rng_state(device)
        return state

    def set_random_state(self, state: dict[str, Tensor]) -> None:
        torch.set_rng_state(state["cpu"])
        for device in self.gpus:
            if "cuda" in state:  # not where a run goes on that began on the CPU
                torch.cuda.set_rng_state(state["cuda"], device)

    def restore(self, state: dict[str, Any]) -> tuple[int, int]:
        """Take up a checkpoint; returns how much of the history, and of the list of skipped images, belongs to it."""
        path, config = self.folder / "checkpoint.pt", self.folder / "config.yaml"
        try:
            for key, value, what in (
                ("stream", self.outline.fingerprint, "on another stream"),
                ("files", self.outline.files, "when other images had a file"),
                ("words", self.words, "with other word vectors"),
                ("weights", self.provenance.sha256, "from other first weights"),
            ):
                if state[key] != value:
                    raise UserError(f"{path} was made {what} than {config} describes")
            for name, value in _movable(self.config.to_dict()).items():
                made = _movable(state["config"])[name]
                if name not in MAY_CHANGE and made != value:
                    raise UserError(f"{path} was made with another {name} than {config} says: {short(made)}")
            self.method.load_state_dict(state["method"])
            self.set_random_state(state["random_state"])
            self.progress = Progress(*(state[field.name] for field in dataclasses.fields(Progress)))
            self.progress.bad_train = set(self.progress.bad_train)
            self.progress.bad_test = set(self.progress.bad_test)
            return int(state["history_bytes"]), int(state["skipped_bytes"])
        except (RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"{path} does not fit {config}: {reason}") from None

    def summary(self) -> dict[str, Any]:
        names = {"stream": self.outline.name, "method": self.config.method, "fidelity": self.config.fidelity}
        return {**names, "seed": self.config.seed, **summarise(self.progress.records, self.outline.tasks)}

    def write_results(self) -> None:
        matrix = self.method.matrix()
        if matrix is not None and self.progress.task == len(self.tasks):  # at the end: it holds every task's
            self.folder.write_matrices(matrix, self.method.sizes, self.outline.classes, self.keeper.truth())
        self.folder.write_json("environment.json", self.environment())
        self.folder.write_json("metrics.json", self.summary())  # last: it says that a run is finished

    def environment(self) -> dict[str, Any]:
        """What the run ran on, and what it cost so far."""
        p = self.progress
        seconds = p.seconds + time.monotonic() - self.started
        return {
            **machine(self.device),
            "precision": self.method.setting.precision,
            "recorded": self.method.setting.record,
            "compiled": self.method.setting.compile,
            "seconds": round(seconds, 3),
            "images_per_second": round(p.images / seconds, 2) if seconds else None,
            **memory(self.device),
            "kept": dataclasses.asdict(self.method.kept()),
            "stream_fingerprint": self.outline.fingerprint,
            "images_missing": sum(self.outline.missing),
            "images_skipped": len(p.bad_train) + len(p.bad_test),
            "weights": self.provenance.to_dict(),
        }

    def check_stop(self) -> None:
        if self.stop_asked:
            self.saver.wait()
            raise Stopped(f"stopped; go on with: lifelabel train --resume {self.folder.path}")

    def ask(self) -> None:
        """Ctrl-C and SIGTERM ask once: the step ends and a checkpoint is written. A second Ctrl-C is not caught."""
        self.stop_asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _movable(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the files it names, which may have moved: fingerprints tell whether they are the same."""
    kept = {k: v for k, v in config.items() if k not in ("words", "weights")}
    kept["stream_options"] = {k: v for k, v in config["stream_options"].items() if k not in ("root", "file")}
    return kept
