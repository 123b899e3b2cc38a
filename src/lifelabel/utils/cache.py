"""Arrays stored in the user's cache folder. The folder can be deleted: the arrays are then computed again."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np

from lifelabel.errors import UserError
from lifelabel.utils.files import atomic_write, open_regular, partial_name


def _folder() -> Path:
    """`$LIFELABEL_CACHE`, else `lifelabel` in `$XDG_CACHE_HOME`, else `~/.cache/lifelabel`."""
    if given := os.environ.get("LIFELABEL_CACHE"):
        return Path(given)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "lifelabel"


def load(name: str) -> dict[str, np.ndarray] | None:
    """The arrays saved under `name`; None if there are none or the file cannot be read."""
    try:
        with open_regular(_folder() / f"{name}.npz") as file, np.load(file, allow_pickle=False) as saved:
            return dict(saved)
    except Exception:  # a damaged file raises errors of zipfile, zlib and numpy; the caller computes the arrays again
        return None


def save(name: str, **arrays: np.ndarray) -> None:
    """Save arrays under `name`. If the folder cannot be written, nothing is saved.

    Several processes may save the same arrays at the same time, each through another temporary file.
    """
    with contextlib.suppress(OSError, RuntimeError, UserError):  # RuntimeError: the user has no home folder
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / f"{name}.npz", partial_name(f"{name}-{os.getpid()}.npz")) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
