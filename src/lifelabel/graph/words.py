"""Label embeddings: GloVe vectors from a text file, or a fixed vector for every word.

A label of several words is the mean of its words. A word's fixed vector depends on its letters alone: it is the
same in every run, on every machine, whatever other labels there are.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lifelabel import cache
from lifelabel.errors import UserError

SPREAD = 0.4  # about the standard deviation of an entry of GloVe 6B's 300-d vectors
MAX_LINE = 65_536
SMALL_FILE = 2**20  # read again faster than a cache folder fills


def split_words(label: str) -> list[str]:
    """
    >>> split_words("Traffic light")
    ['traffic', 'light']
    """
    return re.findall(r"[^\W_]+", label.lower()) or [label.lower()]


def fixed_vector(word: str, dim: int) -> np.ndarray:
    """A vector drawn from the word's own letters, entries uniform around 0.

    >>> bool((fixed_vector("boat", 8) == fixed_vector("boat", 8)).all())
    True
    """
    digest = hashlib.shake_256(word.encode()).digest(4 * dim)
    unit = np.frombuffer(digest, "<u4").astype(np.float64) / 2**32
    return (2 * unit - 1) * (SPREAD * 3**0.5)


def read_glove(path: str | Path, words: set[str]) -> tuple[dict[str, np.ndarray], int]:
    """The vectors of `words` in a GloVe text file (`word v1 v2 …` a line), read line by line, and their length."""
    left = {word.encode(): word for word in words}
    found: dict[str, np.ndarray] = {}
    dim = 0
    try:
        with open(path, "rb") as lines:
            number = 0
            while (line := lines.readline(MAX_LINE)) and (left or not dim):
                number += 1
                word, _, rest = line.partition(b" ")
                name = left.pop(word.rstrip(), None)
                if name is None and dim:
                    continue
                vector = _vector(rest)
                if not len(vector) or (dim and len(vector) != dim) or not np.isfinite(vector).all():
                    raise UserError(f"{path}, line {number}: not a word and its vector; give a GloVe text file")
                dim = len(vector)
                if name is not None:
                    found[name] = vector
    except OSError as error:
        raise UserError(f"cannot read the word vectors {path}: {error.strerror}") from None
    if not dim:
        raise UserError(f"{path} is empty; give a GloVe text file")
    return found, dim


def _vector(text: bytes) -> np.ndarray:
    try:
        return np.array(text.split(), np.float64)
    except ValueError:
        return np.empty(0)


def find_words(path: str | Path, words: set[str]) -> tuple[dict[str, np.ndarray], int]:
    """As `read_glove`, but a large file is read through only once for the same words."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise UserError(f"cannot read the word vectors {path}: {error.strerror}") from None
    if status.st_size < SMALL_FILE:
        return read_glove(path, words)
    key = json.dumps([os.path.abspath(path), status.st_size, status.st_mtime_ns, sorted(words)])
    name = f"words-{hashlib.sha256(key.encode()).hexdigest()}"
    if kept := _kept(name, words):
        return kept
    found, dim = read_glove(path, words)
    vectors = np.array(list(found.values())).reshape(len(found), dim)
    cache.save(name, words=np.array(list(found), str), vectors=vectors)
    return found, dim


def _kept(name: str, words: set[str]) -> tuple[dict[str, np.ndarray], int] | None:
    kept = cache.load(name) or {}
    names, vectors = kept.get("words"), kept.get("vectors")
    if names is None or vectors is None or vectors.ndim != 2 or names.shape != vectors.shape[:1]:
        return None
    if vectors.dtype != np.float64 or not np.isfinite(vectors).all() or not words.issuperset(names.tolist()):
        return None
    return dict(zip(names.tolist(), vectors, strict=True)), vectors.shape[1]


def embed(
    labels: Sequence[str], glove: str | Path | None = None, dim: int = 300, norm: float | None = None
) -> tuple[np.ndarray, list[str]]:
    """Embeddings of `labels` (labels x d, float32), and the words that the file did not have.

    Without a file every word gets its fixed vector of length `dim`; with one, so do the words it lacks. With `norm`
    every label's vector is scaled to that length.

    >>> vectors, missing = embed(["sky", "traffic light"], dim=4)
    >>> vectors.shape, missing
    ((2, 4), [])
    """
    words = {label: split_words(label) for label in labels}
    wanted = {word for parts in words.values() for word in parts}
    found: dict[str, np.ndarray] = {}
    if glove is not None:
        found, dim = find_words(glove, wanted)
    means = [np.mean([found.get(w, fixed_vector(w, dim)) for w in words[label]], axis=0) for label in labels]
    vectors = np.array(means).reshape(len(labels), dim)
    if norm is not None:
        vectors *= norm / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    missing = sorted(wanted - set(found)) if glove is not None else []
    return vectors.astype(np.float32), missing
