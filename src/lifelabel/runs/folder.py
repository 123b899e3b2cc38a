"""The run folder: the files of a run, written so that a kill at any moment loses none of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from lifelabel.errors import Interrupted, UserError
from lifelabel.runs import names
from lifelabel.runs.records import says_finished
from lifelabel.utils.files import (
    atomic_write,
    below,
    open_regular,
    partial_name,
    read_limited,
    sha256,
    write_text,
    writing,
)
from lifelabel.utils.yaml_reader import read_yaml

_T = TypeVar("_T")
_MAX_JSON = 64 << 20
"""Bytes of a JSON file. Python objects take about ten times as many."""
_CHECKPOINTS = (names.CHECKPOINT, names.PREVIOUS_CHECKPOINT)
_FILES = (
    names.CONFIG, names.METRICS, names.HISTORY, names.SKIPPED, names.MATRICES, names.SCORES, *_CHECKPOINTS,
    names.ENVIRONMENT,
)  # fmt: skip
_IN_FOLDERS = {
    names.MODEL: names.MODEL_FILES,
    names.DETAILS: (names.details_of_task("*"), names.EXAMPLES),
    names.TENSORBOARD: (names.EVENT_FILES,),
    names.EVALUATION: (*names.EVALUATION_FILES, names.SCORES),
}
"""The files of the folders in a run folder, as patterns."""
_LOCK_SECONDS = 0.1
"""`lifelabel runs` holds a lock for an instant: a second attempt follows."""


class DamagedCheckpoint(UserError):
    """The bytes of a checkpoint are not those that were written."""


def json_text(value: Any) -> str:
    """The text of a JSON file of a run."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


class RunFolder:
    """A folder that belongs to one run. `new` locks it for a new run, `locked` for an existing one.

    Every file in it is named by `folder / name`, which refuses links, and a folder that was moved while it is locked.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._descriptor: int | None = None
        """Of the folder, while it is locked."""
        self._last_is_good = False
        """Whether checkpoint.pt was written or checked through this object."""
        self.digests: dict[str, str] = {}
        """The SHA-256 of each file of the run, by its path in the folder, recorded when the file was written."""

    def __truediv__(self, name: str) -> Path:
        self.check_place()
        return below(self.path, name)

    def check_place(self) -> None:
        """Refuse to continue if the locked folder was moved: files at its path would belong to something else."""
        if self._descriptor is None:
            return
        status = os.fstat(self._descriptor)
        with contextlib.suppress(OSError):
            if os.path.samestat(status, os.stat(self.path)):
                return
        if not status.st_nlink:
            raise UserError(f"{self.path} was deleted while its run was active: start the run again")
        where, argument = "the folder that was moved", "FOLDER"
        with contextlib.suppress(OSError):  # Linux knows the place
            where = os.readlink(f"/proc/self/fd/{self._descriptor}")
            argument = shlex.quote(where)
        raise UserError(
            f"{self.path} was moved while its run was active, so the run has stopped: its files are in {where}; "
            f"resume with: lifelabel train --resume {argument}"
        )

    @property
    def is_run(self) -> bool:
        return (self.path / names.CONFIG).is_file()

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended: metrics.json is written last."""
        return (self / names.METRICS).is_file() and says_finished(self.read_json(names.METRICS))

    @property
    def is_running(self) -> bool:
        """Whether a process holds the lock of the folder."""
        try:
            import fcntl

            with open_regular(below(self.path, names.LOCK)) as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    return True
                return False  # closing the file ends the lock
        except (ImportError, OSError, UserError):  # Windows has no such lock; no lock file, or not readable
            return False

    def check(self, overwrite: bool) -> None:
        """Refuse a folder that is not empty, unless it holds a run and `overwrite`. Nothing is changed."""
        ours = {names.LOCK, *map(partial_name, _FILES)}  # a killed run can leave these behind
        try:
            left = {entry.name for entry in self.path.iterdir()} - ours if self.path.exists() else set()
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}; choose another --out") from None
        if left and not self.is_run:
            raise UserError(f"{self.path} is not empty and holds no run: choose another --out")
        if left and not overwrite:
            raise UserError(
                f"{self.path} holds a run: continue it with --resume {self.path}, or give another --out or --overwrite"
            )

    def create(self) -> None:
        """Create the folder, if it does not exist."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}; choose another --out") from None

    @contextlib.contextmanager
    def new(self, overwrite: bool) -> Iterator[None]:
        """Lock the folder for a new run. The files of a run that it replaces are deleted."""
        self.check(overwrite)
        self.create()
        with self.locked():
            for path in self._own_paths():
                if path.is_dir():
                    with contextlib.suppress(OSError):  # it has other files
                        path.rmdir()
                else:
                    path.unlink(missing_ok=True)
            yield

    def _own_paths(self) -> list[Path]:
        """The files and folders of a run, in the order in which they are deleted. None of them is a link."""
        paths = []
        for name in (*_IN_FOLDERS, *(path.name for path in self.path.glob(names.model_of_task("*")))):
            patterns = _IN_FOLDERS[name.partition("-")[0]]
            files = [path.name for pattern in patterns for path in (self / name).glob(pattern)]
            paths += [self / each for each in (*(f"{name}/{file}" for file in files), name)]
        # config.yaml last: until then the folder still holds a run
        return [*paths, *(self / name for name in reversed(_FILES))]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process. A second process is refused. The lock ends with the process.

        If something in the folder is a link, this is reported here and not when it is written, after hours.
        """
        self._own_paths()
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        with contextlib.ExitStack() as opened:
            try:
                descriptor = os.open(self.path, os.O_RDONLY)
                opened.callback(os.close, descriptor)
                # not through a link, and without waiting for the reader of a named pipe
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
                lock = os.open(below(self.path, names.LOCK), flags, 0o666)
                handle = opened.enter_context(os.fdopen(lock, "r+b", 0))
            except OSError as error:
                raise UserError(f"cannot write to {self.path}: {error.strerror}; choose another folder") from None
            try:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    time.sleep(_LOCK_SECONDS)
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self.path} is in use by another process; wait for it or stop it first") from None
            self._descriptor = descriptor
            try:
                yield
            except Interrupted:
                self.check_place()  # the reason why a file could not be written
                raise
            finally:
                self._descriptor = None
                # a process that was forked in between holds the lock too, and may run longer
                fcntl.flock(handle, fcntl.LOCK_UN)

    def write_text(self, name: str, text: str) -> None:
        write_text(self / name, text)
        self.digests[name] = hashlib.sha256(text.encode()).hexdigest()

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, json_text(value))

    def read_json(self, name: str) -> dict[str, Any]:
        """The JSON object in a file."""
        path = self / name
        if not path.exists():
            raise UserError(f"cannot read {path}: No such file or directory; is {self.path} a run folder?")
        try:
            found = json.loads(read_limited(path, _MAX_JSON))
        except (ValueError, RecursionError):
            raise UserError(f"{path} is damaged: not JSON") from None
        if not isinstance(found, dict):
            raise UserError(f"{path} is damaged: not a JSON object")
        return found

    def read_config(self) -> dict[str, Any]:
        """The options in config.yaml, as they are written there."""
        return read_yaml(self / names.CONFIG)

    def write_matrices(
        self, matrix: np.ndarray, sizes: Sequence[int], classes: Sequence[str], truth: np.ndarray | None
    ) -> None:
        """Write acm.npz: `task_1` … `task_T`, the matrix at the end of each task, `classes`, and `truth` if known.

        Old-Old is frozen, so the matrix after task t is the leading block of the last one.
        """
        blocks = {f"task_{t + 1}": matrix[:c, :c] for t, c in enumerate(np.cumsum(sizes))}
        known = {} if truth is None else {"truth": truth[: len(matrix), : len(matrix)]}
        self.write_arrays(names.MATRICES, {**blocks, "classes": np.array(classes), **known})

    def write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a compressed .npz array by array. Views of one array take no more memory than the array."""
        path = self / name
        with writing(path):
            path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as handle, zipfile.ZipFile(handle, "w", zipfile.ZIP_DEFLATED) as archive:
            for key, array in arrays.items():
                with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
        self.digests[name] = sha256(self / name)  # now: a .zip file is not written from its first byte to its last

    def changes(self, recorded: Mapping[str, str]) -> dict[str, str]:
        """What is wrong with each file that is not as `recorded`, the digests of all files of the run, by its path."""
        folders = (names.MODEL, names.model_of_task("*"), names.DETAILS)
        inside = [f"{folder}/{name}" for folder in folders for name in _IN_FOLDERS[folder.partition("-")[0]]]
        own = [name for name in _FILES if name not in (*_CHECKPOINTS, names.ENVIRONMENT)]
        paths = (path for name in (*own, *inside) for path in self.path.glob(name) if path.is_file())
        found = {name: sha256(self / name) for name in (path.relative_to(self.path).as_posix() for path in paths)}
        both = found.keys() & recorded.keys()
        wrong = {name: "another SHA-256" for name in both if found[name] != recorded[name]}
        wrong |= dict.fromkeys(recorded.keys() - found.keys(), "missing")
        wrong |= dict.fromkeys(found.keys() - recorded.keys(), "not written by the run")
        return dict(sorted(wrong.items()))

    def write_checkpoint(self, write: Callable[[IO[bytes]], None]) -> None:
        """Write checkpoint.pt. The one before it is kept as checkpoint-previous.pt, unless it is damaged."""
        last, previous = (self / name for name in _CHECKPOINTS)
        with atomic_write(last, previous=previous if self._last_is_good else None) as handle:
            write(handle)
        self._last_is_good = True

    def delete_checkpoints(self) -> None:
        for name in _CHECKPOINTS:
            (self / name).unlink(missing_ok=True)

    def read_checkpoint(self, read: Callable[[Path], _T], note: Callable[[str], None] | None = None) -> _T | None:
        """What `read` gives for the last checkpoint; None if there is none yet.

        If it raises `DamagedCheckpoint`, this is reported to `note`, and the one before it is read.
        """
        last, previous = (self / name for name in _CHECKPOINTS)
        damage = f"{last} is missing"
        if last.exists():
            try:
                state = read(last)
                self._last_is_good = True
                return state
            except DamagedCheckpoint as error:
                damage, self._last_is_good = str(error), False
        elif not previous.exists():
            return None
        try:
            if not previous.exists():
                raise DamagedCheckpoint(f"there is no {previous.name}")
            state = read(previous)
        except DamagedCheckpoint as error:
            raise UserError(f"{damage}, and {error}: run again with --config and --overwrite") from None
        if note:
            note(f"{damage}: {previous}, the checkpoint before it, is used")
        return state
