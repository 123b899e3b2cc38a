"""The SHA-256 of the files of a finished run. `lifelabel verify` compares them."""

from __future__ import annotations

import hashlib
from typing import Any

from lifelabel.engine.run_folder import DETAILS, MODEL, RunFolder, json_text
from lifelabel.nn.weights import sha256

__all__ = ["METRICS", "file_digests", "run_digests"]

METRICS = "metrics.json"
_MODEL_FILES = ("model.safetensors", "training-images.bin", "model.json", "README.md")
_PATTERNS = (
    "config.yaml", "history.jsonl", "skipped.jsonl", "acm.npz", "scores.npz", f"{DETAILS}/*.npz",
    *(f"{folder}/{name}" for folder in (MODEL, f"{MODEL}-task-*") for name in _MODEL_FILES),
)  # fmt: skip
"""The files that are written before environment.json, which has their digests."""


def file_digests(folder: RunFolder) -> dict[str, str]:
    """The SHA-256 of each file that a run writes before environment.json, by its path in the run folder."""
    paths = sorted(path for pattern in _PATTERNS for path in folder.path.glob(pattern) if path.is_file())
    return {path.relative_to(folder.path).as_posix(): sha256(path) for path in paths}


def run_digests(folder: RunFolder, metrics: Any) -> dict[str, str]:
    """`file_digests`, and the SHA-256 of metrics.json, which is written last."""
    return {**file_digests(folder), METRICS: hashlib.sha256(json_text(metrics).encode()).hexdigest()}
