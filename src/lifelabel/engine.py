"""The one pass: order, seeds, devices, checkpoints. It knows no method and no stream by name."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import importlib.metadata
import math
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lifelabel.config import Config, merge, read_yaml, resolve_device
from lifelabel.errors import Stopped, UserError, short
from lifelabel.evaluate import evaluate, summarise
from lifelabel.graph import embed
from lifelabel.images import augment, send, to_input
from lifelabel.learner import Setting
from lifelabel.methods import METHODS, Batch, Method
from lifelabel.runfolder import History, RunFolder
from lifelabel.streams import STREAMS, Stream, TrainView
from lifelabel.version import __version__

MAY_CHANGE = ("lr", "backbone_lr", "later_backbone_lr", "adam_eps", "device", "checkpoint_seconds")
"""Options that may be edited in config.yaml before a run goes on; any other would make it another run."""
READ_EVERY = 10
"""Steps between two looks at the losses: each look waits for the device."""


class Watcher:
    """Is told what happens; the command line's draws progress bars. This one stays silent."""

    def begin(self, config: Config, views: list[TrainView], task: int, images: int) -> None: ...
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
    config = Config.make(merge(options or {}, more))
    if config.words is not None:  # the run can then be resumed from any folder
        config = dataclasses.replace(config, words=str(Path(config.words).absolute()))
    folder = RunFolder(out)
    run = Run(config, folder, watch or Watcher())  # a mistake in an option shows before any file is touched
    with folder.new(overwrite):
        folder.write_text("config.yaml", config.to_yaml())
        return run.go(None)


def resume(folder: str | Path, watch: Watcher | None = None) -> Result:
    """Go on with a run that was stopped or killed, from its last checkpoint, inside the task."""
    at = RunFolder(folder)
    if not at.is_run:
        raise UserError(f"{at.path} is not a run folder: it has no config.yaml")
    run = Run(Config.make(read_yaml(at / "config.yaml")), at, watch or Watcher())
    with at.locked():
        return run.go(at.load_checkpoint())


def train_missing(
    out: str | Path, options: Mapping[str, Any], *, overwrite: bool = False, watch: Watcher | None = None
) -> Result:
    """Train into `out` unless that run is there already: one that is finished is kept, one that stopped goes on."""
    folder = RunFolder(out)
    if overwrite or not folder.is_run:
        return train(out, options, overwrite=overwrite, watch=watch)
    if Config.make(read_yaml(folder / "config.yaml")) != Config.make(options):
        raise UserError(f"{out} holds a run with other options: choose another --out, or give --overwrite")
    return resume(out, watch)


class Run:
    def __init__(self, config: Config, folder: RunFolder, watch: Watcher):
        self.config, self.folder, self.watch = config, folder, watch
        self.device = resolve_device(config.device)
        self.stream: Stream = STREAMS[config.stream].build(config.stream_options)
        self.gpus = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(self.gpus):
            torch.manual_seed(config.seed)
            self.method = self.build_method()
            self.random_state = self.get_random_state()
        tasks = range(len(self.stream.tasks))
        self.views = [self.stream.joint_view()] if self.method.joint else [self.stream.train_view(t) for t in tasks]
        self.progress = Progress()
        self.stop_asked = False

    def go(self, state: dict[str, Any] | None) -> Result:
        """Run to the end from the beginning, or from a checkpoint."""
        with torch.random.fork_rng(self.gpus), self.stopping():
            self.set_random_state(self.random_state)
            history_bytes = self.restore(state) if state else 0
            if self.progress.task < len(self.views):
                self.history = History(self.folder / "history.jsonl", history_bytes)
                self.started = self.saved = time.monotonic()
                self.watch.begin(self.config, self.views, self.progress.task, self.progress.images)
                try:
                    while self.progress.task < len(self.views):
                        self.run_task(self.views[self.progress.task])
                finally:
                    self.history.close()
                    self.watch.end()
        return Result(self.folder.path, self.config, self.summary(), self.folder.read_json("environment.json"))

    def build_method(self) -> Method:
        c = self.config
        names: list[str] = list(self.stream.classes)
        vectors, missing = embed(names, c.words, c.word_dim, c.word_norm)
        if missing:
            self.watch.note(
                f"{len(missing)} label words are not in {c.words} and get a fixed vector: {', '.join(missing)}"
            )
        self.words = hashlib.sha256(vectors.tobytes()).hexdigest()
        table = torch.from_numpy(vectors).to(self.device)
        row = {name: i for i, name in enumerate(names)}
        setting = Setting.of(c, lambda labels: table[[row[label] for label in labels]], self.device)
        return METHODS[c.method](setting, c.method_options)

    def run_task(self, view: TrainView) -> None:
        """One pass over one task's images, each used once, then the evaluation."""
        p, size = self.progress, self.config.batch_size
        if len(self.method.tasks) == p.task:
            self.method.begin_task(view.task.classes)
        order = np.random.default_rng([self.config.seed, p.task]).permutation(len(view))
        steps = math.ceil(len(view) / size)
        unread: list[tuple[int, dict[str, Tensor]]] = []
        while p.step < steps:
            rows = order[p.step * size : (p.step + 1) * size]
            batch = self.load(view, rows)
            unread.append((len(rows), self.method.observe(batch)))
            p.step += 1
            p.images += len(rows)
            due = p.step == steps or time.monotonic() - self.saved >= self.config.checkpoint_seconds
            if due or self.stop_asked or len(unread) == READ_EVERY:
                self.read_losses(unread)
                unread = []
            stop = self.stop_asked and not unread  # a signal can come between any two lines
            if due or stop:
                self.check_scores(batch)
                self.save()
            if stop:
                self.check_stop()
        self.method.end_task()
        done = len(self.stream.tasks) if self.method.joint else p.task + 1
        try:
            p.records.append(evaluate(self.method, self.stream, done, self.check_stop))
        except FloatingPointError as error:
            raise self.diverged(p.step, str(error)) from None
        p.task, p.step = p.task + 1, 0
        self.write_results()
        self.save()
        self.watch.evaluated(p.records[-1])
        if p.task < len(self.views):
            self.check_stop()

    def load(self, view: TrainView, rows: np.ndarray) -> Batch:
        images, labels = view.batch(rows)
        x = to_input(images, self.method.setting.backbone)
        seed = np.random.SeedSequence([self.config.seed, self.progress.task, self.progress.step]).generate_state(1)[0]
        x = augment(x, self.config.augment, torch.Generator().manual_seed(int(seed)))
        return Batch(x, send(torch.from_numpy(labels), self.device).float())

    def read_losses(self, unread: list[tuple[int, dict[str, Tensor]]]) -> None:
        """Bring the losses of the last steps to the host, check them, write them down."""
        p = self.progress
        values = torch.stack([torch.stack(list(losses.values())) for _, losses in unread]).tolist()
        images = p.images - sum(count for count, _ in unread)
        for i, ((count, losses), row) in enumerate(zip(unread, values, strict=True)):
            named = dict(zip(losses, row, strict=True))
            step = p.step - len(unread) + i + 1
            for name, value in named.items():
                if not math.isfinite(value):
                    raise self.diverged(step, f"the loss '{name}' is {value}")
            images += count
            self.history.write({"task": p.task + 1, "step": step, "images": images, "losses": named})
        self.watch.steps(p.task, sum(count for count, _ in unread), named)

    @torch.no_grad()
    def check_scores(self, batch: Batch) -> None:
        """A step can leave weights that are finite and of no use: what they say of the last batch shows it."""
        if not bool(self.method.scores(batch.images).isfinite().all()):
            raise self.diverged(self.progress.step, "the scores are not finite any more")

    def diverged(self, step: int, what: str) -> UserError:
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
        p.seconds, self.started, self.saved = p.seconds + now - self.started, now, now
        self.folder.save_checkpoint(
            {
                "stream": self.stream.fingerprint, "words": self.words, "config": self.config.to_dict(),
                "task": p.task, "step": p.step, "images": p.images, "seconds": p.seconds, "records": p.records,
                "method": method, "random_state": self.get_random_state(), "history_bytes": self.history.sync(),
            }
        )  # fmt: skip
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

    def restore(self, state: dict[str, Any]) -> int:
        """Take up a checkpoint; returns how much of the history belongs to it."""
        path, config = self.folder / "checkpoint.pt", self.folder / "config.yaml"
        try:
            if state["stream"] != self.stream.fingerprint:
                raise UserError(f"{path} was made on another stream than {config} describes")
            if state["words"] != self.words:
                raise UserError(f"{path} was made with other word vectors than {config} describes")
            for name, value in self.config.to_dict().items():
                made = state["config"][name]
                if name not in MAY_CHANGE and made != value:
                    raise UserError(f"{path} was made with another {name} than {config} says: {short(made)}")
            self.method.load_state_dict(state["method"])
            self.set_random_state(state["random_state"])
            self.progress = Progress(*(state[field.name] for field in dataclasses.fields(Progress)))
            return int(state["history_bytes"])
        except (RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"{path} does not fit {config}: {reason}") from None

    def summary(self) -> dict[str, Any]:
        names = {"stream": self.config.stream, "method": self.config.method, "fidelity": self.config.fidelity}
        return {**names, "seed": self.config.seed, **summarise(self.progress.records, self.stream)}

    def write_results(self) -> None:
        self.folder.write_json("metrics.json", self.summary())
        self.folder.write_json("environment.json", self.environment())
        matrix = self.method.matrix()
        if matrix is not None and self.progress.task == len(self.views):  # at the end: it holds every task's
            classes = self.stream.classes[: len(matrix)]
            self.folder.write_matrices(matrix, self.method.sizes, classes, self.stream.truth)

    def environment(self) -> dict[str, Any]:
        """What the run ran on, and what it cost so far."""
        p = self.progress
        seconds = p.seconds + time.monotonic() - self.started
        cuda = self.device.type == "cuda"
        return {
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "lifelabel": __version__,
            "commit": commit(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: installed(name) for name in ("torchvision", "timm", "numpy", "pillow")},
            "device": torch.cuda.get_device_name(self.device) if cuda else processor(),
            "threads": torch.get_num_threads(),
            "seconds": round(seconds, 3),
            "images_per_second": round(p.images / seconds, 2) if seconds else None,
            "peak_memory_bytes": peak_memory(),
            "peak_device_memory_bytes": torch.cuda.max_memory_allocated(self.device) if cuda else None,
            "stream_fingerprint": self.stream.fingerprint,
        }

    def check_stop(self) -> None:
        if self.stop_asked:
            raise Stopped(f"stopped; go on with: lifelabel train --resume {self.folder.path}")

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM ask once: the step ends and a checkpoint is written. A second Ctrl-C is not caught."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: Any) -> None:
            self.stop_asked = True
            signal.signal(signal.SIGINT, signal.default_int_handler)

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def all_finite(value: Any) -> bool:
    """Whether every floating-point tensor in nested dicts and lists is finite."""
    if isinstance(value, dict):
        return all(map(all_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(all_finite, value))
    return not (isinstance(value, Tensor) and value.is_floating_point()) or bool(torch.isfinite(value).all())


def installed(name: str) -> str | None:
    """The version of a package, or None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The CPU's name as the system gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def peak_memory() -> int | None:
    """The most memory this process has held, in bytes; None where the system does not say."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@functools.cache
def commit() -> str | None:
    """The git commit of the lifelabel that runs, with + where files differ from it; None outside its checkout."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # installed inside somebody else's checkout: not ours
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None
