"""The checkpoints of a run: when and how they are written, and how a run continues from one."""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lifelabel.config.config import Config
from lifelabel.engine.checkpoint_file import load_checkpoint, save_checkpoint
from lifelabel.engine.checks import check_state
from lifelabel.engine.progress import (
    Progress,
    affects_figures,
    check_same_run,
    get_random_state,
    kept_lines,
    new_changes,
    recorded_digests,
    set_random_state,
    trained_pairs,
)
from lifelabel.engine.setup import Run
from lifelabel.errors import NotFinite, UserError
from lifelabel.options import change_text
from lifelabel.registry import plugin_digests
from lifelabel.runs import names
from lifelabel.runs.lines import JsonLines
from lifelabel.utils.files import sha256
from lifelabel.utils.transfer import record_event

_WRITTEN_AGAIN = (names.CONFIG, names.ENVIRONMENT, names.METRICS)
"""Files of which a run writes another content when it continues."""


class Checkpoints:
    """Writes the checkpoints of a run, with all that is needed to continue exactly from there."""

    def __init__(self, run: Run, history: JsonLines, skipped: JsonLines):
        self.run, self.lines = run, {"history": history, "skipped": skipped}
        self.saver = AsyncSaver(functools.partial(save_checkpoint, run.folder), run.device)
        self.started = self.saved = time.monotonic()

    @property
    def due(self) -> bool:
        return time.monotonic() - self.saved >= self.run.config.checkpoint_seconds and not self.saver.busy

    def seconds(self) -> float:
        return self.run.progress.seconds + time.monotonic() - self.started

    def save(self) -> None:
        """Write a checkpoint. Weights that are not finite are not written."""
        run = self.run
        method = run.method.state_dict()
        check_state(method, run.config.method)
        if not all_finite(method):
            raise NotFinite("the weights are not finite")
        if not run.group.first:
            return
        run.progress.seconds, self.started = self.seconds(), time.monotonic()
        state = {
            **run.made_from, "plugin_files": plugin_digests(), "config": run.config.to_dict(),
            **run.progress.to_dict(), "resolved": run.resolved, "image_size": run.image_size, "method": method,
            "trained": torch.from_numpy(run.trained.pairs.view(np.int64)),
            "random_state": get_random_state(run.gpus), "digests": run.folder.digests,
        }  # fmt: skip
        for name, lines in self.lines.items():
            state |= {f"{name}_bytes": lines.sync(), f"{name}_sha256": lines.sha256}
        self.saver.save(state)
        if not run.config.checkpoint_seconds:  # a checkpoint after every step
            self.saver.wait()
        self.saved = time.monotonic()

    def last(self) -> dict[str, Any] | None:
        self.saver.wait()
        return load_checkpoint(self.run.folder)

    def close(self) -> None:
        self.saver.close()


class Resumed(NamedTuple):
    """What a run that continues has from its checkpoint, besides its position."""

    history: tuple[int, str | None] = (0, None)
    """The length and the SHA-256 of history.jsonl."""
    skipped: tuple[int, str | None] = (0, None)
    """The same of skipped.jsonl."""
    changes: tuple[dict[str, Any], ...] = ()
    """The options that have changed since."""


def restore(run: Run, state: dict[str, Any]) -> Resumed:
    """Put a run at the position of a checkpoint."""
    try:
        check_same_run(state, run.made_from, run.config, run.folder)
        for name in state["plugin_files"].items() - plugin_digests().items():
            run.callback.note(f"the plug-in {name[0]} has changed since the checkpoint was written")
        run.method.load_state_dict(state["method"])
        set_random_state(state["random_state"], run.gpus)
        p = run.progress = Progress.from_dict(state)
        run.trained.add_pairs(trained_pairs(state))
        sizes = (run.info.joint_size,) if run.joint else run.info.sizes
        steps = [run.config.epochs * math.ceil(size / run.config.batch_size) for size in sizes]
        p.check(len(run.tasks), max(run.info.learned - 1, 0), steps)
        recorded_digests(state)  # checked here; `check_folder` uses them
        changes = new_changes(state, run.config, run.resolved, p)
        return Resumed(kept_lines(state, "history"), kept_lines(state, "skipped"), tuple(changes))
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{run.folder / names.CHECKPOINT} does not fit {run.folder / names.CONFIG}: {reason}") from None


def check_folder(run: Run, state: Mapping[str, Any] | None, changes: tuple[dict[str, Any], ...]) -> None:
    """Check the SHA-256 of the files written before a checkpoint, and report changed options.

    config.yaml is compared by its options. If its bytes differ, it is written again. Changes of options are recorded,
    unless training is complete.
    """
    folder, config, note = run.folder, run.config, run.callback.note
    recorded = recorded_digests(state) if state else folder.digests
    for name, what in folder.changes(recorded).items():
        if name in recorded and name not in _WRITTEN_AGAIN:
            raise UserError(
                f"{folder / name} is not as the run wrote it ({what}): restore it from a copy, or run again with "
                "--config and --overwrite"
            )
    folder.digests = recorded
    if state and run.progress.task == len(run.tasks):
        changes, config = (), Config.make(state["config"])
    for change in changes:
        note(change_text(change))
        if affects_figures(config, change["option"]):
            run.progress.changed_options.append(change)
    path = folder / names.CONFIG
    if sha256(path) != recorded.get(names.CONFIG):
        if recorded and not changes:
            note(f"{path} is not as the run wrote it: it is written again with the options of the run")
        folder.write_text(names.CONFIG, config.to_yaml())


class AsyncSaver:
    """Writes states in a thread, one at a time. Training continues when a copy of the state is made on its device.

    So a step waits neither for the copy to the host nor for the disk.
    """

    def __init__(self, write: Callable[[dict[str, Any]], None], device: torch.device):
        self.write, self.device = write, device
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        # of another priority: streams of one pool are reused, and a step may be recorded on one of them
        self.stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self.writing: Future[None] | None = None

    @property
    def busy(self) -> bool:
        return self.writing is not None and not self.writing.done()

    def save(self, state: dict[str, Any]) -> None:
        self.wait()
        held, copied = [_map_tensors(state, Tensor.clone)], record_event(self.device)
        self.writing = self.thread.submit(self._copy_and_write, held, copied)

    def _copy_and_write(self, held: list[dict[str, Any]], copied: torch.cuda.Event | None) -> None:
        """Copy the state in `held` to the host and write it. Popping it frees the copy on the device."""
        state = held.pop()
        if self.stream is not None and copied is not None:
            with torch.cuda.stream(self.stream):
                self.stream.wait_event(copied)
                state = _map_tensors(state, Tensor.cpu)
        self.write(state)

    def wait(self) -> None:
        """Wait until the last state is written. An error of the thread is raised here."""
        writing, self.writing = self.writing, None
        try:
            if writing is not None:
                writing.result()
        finally:
            del writing  # it holds the error, and the traceback of the error holds this frame

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self.thread.shutdown()


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Nested dicts and lists with every tensor changed."""
    if isinstance(value, dict):
        same = copy.copy(value)  # the state dict of a module has a version attribute
        same.update({key: _map_tensors(each, change) for key, each in value.items()})
        return same
    if isinstance(value, (list, tuple)):
        return type(value)(_map_tensors(each, change) for each in value)
    return change(value) if isinstance(value, Tensor) else value


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested dicts and lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, Tensor):
        yield value


def all_finite(value: Any) -> bool:
    """Whether all floating-point tensors in nested dicts and lists are finite. Waits once for each device."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in _tensors(value):
        if tensor.is_floating_point():
            by_device.setdefault(tensor.device, []).append(torch.isfinite(tensor).all())
    return all(bool(torch.stack(each).all()) for each in by_device.values())
