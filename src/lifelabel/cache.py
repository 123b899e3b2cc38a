"""What is costly to find out a second time, kept in the user's cache folder; nothing is lost when it is deleted."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np


def folder() -> Path:
    """`$LIFELABEL_CACHE`, else `lifelabel` in `$XDG_CACHE_HOME`, else `~/.cache/lifelabel`."""
    if own := os.environ.get("LIFELABEL_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "lifelabel"


def load(name: str) -> dict[str, np.ndarray] | None:
    """The arrays kept under `name`; None where there are none, or none that can be read."""
    try:
        with np.load(folder() / f"{name}.npz", allow_pickle=False) as kept:
            return dict(kept)
    except Exception:  # a damaged file raises zipfile's, zlib's, ValueErrors, EOFErrors …; all mean: find out again
        return None


def save(name: str, **arrays: np.ndarray) -> None:
    """Keep arrays, whole or not at all; a folder that cannot be written to keeps nothing."""
    with contextlib.suppress(OSError, RuntimeError):  # a RuntimeError: there is no home
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(".new", name, place)
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            os.replace(beside, place / f"{name}.npz")
        finally:
            Path(beside).unlink(missing_ok=True)
