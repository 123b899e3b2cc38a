"""The run folder: which files a run leaves, written so that a kill at any moment loses none of them."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from lifelabel.errors import UserError

FORMAT = 2
FILES = (
    "config.yaml",
    "metrics.json",
    "history.jsonl",
    "skipped.jsonl",
    "acm.npz",
    "scores.npz",
    "checkpoint.pt",
    "environment.json",
)
LOCK = ".lock"


class RunFolder:
    """A folder that belongs to one run: `new` holds it for a new run, `locked` for one that is there."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def is_run(self) -> bool:
        return (self / "config.yaml").is_file()

    def check(self, overwrite: bool) -> None:
        """Refuse a folder that holds anything, unless it is a run's and `overwrite`; nothing is touched."""
        ours = {LOCK, *(f".{name}.new" for name in FILES)}  # what a kill can leave behind
        try:
            left = {entry.name for entry in self.path.iterdir()} - ours if self.path.exists() else set()
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}; choose another --out") from None
        if left and not self.is_run:
            raise UserError(f"{self.path} is not empty and holds no run: choose another --out")
        if left and not overwrite:
            raise UserError(
                f"{self.path} holds a run: go on with --resume {self.path}, or give another --out or --overwrite"
            )

    @contextlib.contextmanager
    def new(self, overwrite: bool) -> Iterator[None]:
        """Hold the folder for a new run, emptied of the one that it may replace."""
        self.check(overwrite)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}; choose another --out") from None
        with self.locked():
            for name in reversed(FILES):  # config.yaml last: until then the folder is still a run's
                (self / name).unlink(missing_ok=True)
            yield

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; a second one is refused. The system lets go when the process dies."""
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        try:
            handle = open(self / LOCK, "w")
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}; choose another folder") from None
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self.path} is in use by another process; wait for it or stop it first") from None
            try:
                yield
            finally:
                fcntl.flock(handle, fcntl.LOCK_UN)  # a process forked meanwhile holds it too, and may live on

    @contextlib.contextmanager
    def replacing(self, name: str) -> Iterator[IO[bytes]]:
        """Write a file whole or not at all: beside the old one, flushed to the disk, then put in its place."""
        beside = self / f".{name}.new"
        try:
            with open(beside, "wb") as handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(beside, self / name)
        except OSError as error:
            raise UserError(f"cannot write {self / name}: {error.strerror}") from None
        finally:
            beside.unlink(missing_ok=True)

    def write_text(self, name: str, text: str) -> None:
        with self.replacing(name) as handle:
            handle.write(text.encode())

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Any:
        try:
            return json.loads((self / name).read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"cannot read {self / name}: {error.strerror}; is {self.path} a run folder?") from None
        except ValueError:
            raise UserError(f"{self / name} is damaged: not JSON") from None

    def write_matrices(
        self, matrix: np.ndarray, sizes: Sequence[int], classes: Sequence[str], truth: np.ndarray | None
    ) -> None:
        """acm.npz: `task_1` … `task_T`, each task's matrix as it ended, `classes`, and the `truth` where it is known.

        Old-Old is frozen, so the matrix after task t is the leading block of the newest.
        """
        blocks = {f"task_{t + 1}": matrix[:c, :c] for t, c in enumerate(np.cumsum(sizes))}
        known = {} if truth is None else {"truth": truth[: len(matrix), : len(matrix)]}
        self.write_arrays("acm.npz", {**blocks, "classes": np.array(classes), **known})

    def write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """A compressed .npz, written array by array: views of one array take no more memory than it does."""
        with self.replacing(name) as handle, zipfile.ZipFile(handle, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        with self.replacing("checkpoint.pt") as handle:
            torch.save({"format": FORMAT, **state}, handle)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint, as data alone (`weights_only`); None where the run has not come to its first."""
        path = self / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            handle = open(path, "rb")
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
        try:
            with handle:
                state = torch.load(handle, map_location="cpu", weights_only=True)
        except Exception:  # torch raises its own, zipfile's, pickle's, OSErrors and RuntimeErrors for a damaged file
            raise UserError(f"{path} is damaged or cut short: run again with --config and --overwrite") from None
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise UserError(f"{path} is not a checkpoint of this version of lifelabel (format {FORMAT})")
        return state


class History:
    """history.jsonl: one line a step. Lines after the last checkpoint are cut off when a run goes on."""

    def __init__(self, path: Path, keep_bytes: int):
        try:
            self._file = open(path, "ab")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
        if self._file.tell() < keep_bytes:
            self._file.close()
            raise UserError(f"{path} is shorter than the checkpoint says: it was cut or changed since")
        self._file.truncate(keep_bytes)
        self._file.seek(keep_bytes)

    def write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row).encode() + b"\n")

    def sync(self) -> int:
        """Bring all lines to the disk; returns the file's length."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
