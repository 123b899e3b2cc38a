"""Train a method on a stream, into a run folder, or continue a run from its last checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lifelabel.config.config import Config, merge, nest_flags
from lifelabel.engine.callback import Callback
from lifelabel.engine.checkpoint import check_folder, restore
from lifelabel.engine.checkpoint_file import load_checkpoint, save_checkpoint
from lifelabel.engine.progress import set_random_state
from lifelabel.engine.results import summary
from lifelabel.engine.setup import Run
from lifelabel.engine.training import Training
from lifelabel.errors import UserError
from lifelabel.nn.device import deterministic_kernels
from lifelabel.options import declared
from lifelabel.parallel.exchange import SilentFolder
from lifelabel.parallel.group import Group, has_begun, join_group, note_begin
from lifelabel.registry import loaded_plugins, resolve_names
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder
from lifelabel.utils.processes import catch_stop_signals
from lifelabel.utils.text import shorten


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
    structure of a YAML configuration. Keywords override it. A method can be given as `module:NAME` or `FILE.py:NAME`.

    >>> import tempfile
    >>> small = {"train_images": 40, "test_images": 40}
    >>> result = train(tempfile.mkdtemp(), method="fine-tuning", tasks=2, stream_options=small)
    >>> 0 < result.metrics["final"]["mAP"] < 1
    True
    """
    if not isinstance(options or {}, Mapping):
        raise UserError(f"the options must be a dict, not {shorten(options)}: give method='er', or {{'method': 'er'}}")
    named = declared(Config, "registered")
    config = Config.make(merge(options or {}, nest_flags(resolve_names(flags, named))))
    return train_into(out, config, overwrite, callback or Callback())


def train_into(
    out: str | Path, config: Config, overwrite: bool, callback: Callback,
    make_state: Callable[[Run], dict[str, Any] | None] = lambda run: None,
) -> Result:  # fmt: skip
    """Train a run into a new folder, from its beginning or from the state that `make_state` returns.

    If torchrun has started the processes again, and the folder holds the run that they began, it continues.
    """
    config = dataclasses.replace(config.with_absolute_paths(), plugins=tuple(loaded_plugins()))  # files may have moved
    with join_group() as group:
        folder = _make_folder(out, group)
        if group.share(lambda: folder.is_run and has_begun(folder.path) and _read_config(folder) == config):
            return _resume(folder, config, callback, group)
        group.share(lambda: folder.check(overwrite))
        with Run(config, folder, callback, group) as run:
            state = make_state(run)
            with folder.new(overwrite):  # now: a mistake in an option is reported before any file is changed
                # config.yaml first: a folder with a checkpoint alone is no run, and could not be overwritten
                folder.write_text(names.CONFIG, config.to_yaml())
                if state is not None:
                    save_checkpoint(folder, state)
                group.share(lambda: note_begin(folder.path))
                return _finish(run, state)


def resume(folder: str | Path, callback: Callback | None = None) -> Result:
    """Continue a run that was stopped or killed, from its last checkpoint, inside the task.

    Nothing is done if the run is finished.
    """
    with join_group() as group:
        run_folder = _make_folder(folder, group)
        return _resume(run_folder, group.share(lambda: _read_config(run_folder)), callback or Callback(), group)


def _read_config(folder: RunFolder) -> Config:
    if not folder.is_run:
        raise UserError(f"{folder.path} is not a run folder: it has no {names.CONFIG}")
    values = folder.read_config()
    try:
        return Config.make(values)
    except UserError as error:
        raise UserError(f"{folder / names.CONFIG} cannot be used: {error}") from None


def _resume(folder: RunFolder, config: Config, callback: Callback, group: Group) -> Result:
    if group.share(lambda: folder.is_finished):
        metrics = group.share(lambda: folder.read_json(names.METRICS))
        return Result(folder.path, config, metrics, group.share(lambda: folder.read_json(names.ENVIRONMENT)))
    with Run(config, folder, callback, group) as run, folder.locked():
        return _finish(run, group.share(lambda: load_checkpoint(folder, run.callback.note)))


def _make_folder(path: str | Path, group: Group) -> RunFolder:
    """The run folder in a process of the group: only the first one writes."""
    return RunFolder(path) if group.first else SilentFolder(path)


def _finish(run: Run, state: dict[str, Any] | None) -> Result:
    """Train to the end, from the beginning or from a checkpoint."""
    folder = run.folder
    with torch.random.fork_rng(run.gpus), deterministic_kernels(), catch_stop_signals(run.stopping.request):
        set_random_state(run.random_state, run.gpus)
        if state is None and run.info.learned:
            raise UserError(f"{folder.path} extends a run and has no checkpoint: use `lifelabel extend` again")
        resumed = restore(run, state) if state else None
        run.group.share(lambda: check_folder(run, state, resumed.changes if resumed else ()))
        if run.progress.task < len(run.tasks):
            Training(run, resumed).loop()
    metrics = summary(run)
    folder.write_json(names.METRICS, metrics)  # after the last checkpoint: it marks a finished run
    return Result(folder.path, run.config, metrics, run.group.share(lambda: folder.read_json(names.ENVIRONMENT)))
