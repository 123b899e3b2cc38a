"""Label embeddings: GloVe vectors from a text file, or a fixed vector for every word.

The embedding of a label with several words is the mean of its word vectors. The fixed vector of a word depends only on
its letters. It is the same in every run, on every machine and with any other labels.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lifelabel.errors import UserError
from lifelabel.utils import cache
from lifelabel.utils.files import open_regular

_STD = 0.4
"""Standard deviation of an entry of a fixed vector: about that of the 300-d vectors of GloVe 6B."""
_MAX_LINE = 65_536
"""Bytes of a line that are read at once."""
_SMALL_FILE = 2**20
"""Files of fewer bytes are not cached: reading them again is fast."""


def embed(
    labels: Sequence[str], glove: str | Path | None = None, dim: int = 300, norm: float | None = None
) -> tuple[np.ndarray, list[str]]:
    """Embeddings of `labels` (labels x d, float32), and the words that are missing in the file.

    With a `glove` file, d is the length of its vectors, and missing words get their fixed vectors. Without a file, all
    words get fixed vectors of length `dim`, and no word is missing. With `norm`, the embedding of every label is scaled
    to this Euclidean norm.

    >>> vectors, missing = embed(["sky", "traffic light"], dim=4)
    >>> vectors.shape, missing
    ((2, 4), [])
    """
    words = {label: _split_words(label) for label in labels}
    wanted = {word for parts in words.values() for word in parts}
    found: dict[str, np.ndarray] = {}
    if glove is not None:
        found, dim = _find_words(glove, wanted)
    vector_of = {word: found[word] if word in found else _fixed_vector(word, dim) for word in wanted}
    means = [np.mean([vector_of[word] for word in words[label]], axis=0) for label in labels]
    vectors = np.array(means).reshape(len(labels), dim)
    if norm is not None:
        vectors *= norm / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    missing = sorted(wanted - set(found)) if glove is not None else []
    return vectors.astype(np.float32), missing


def _split_words(label: str) -> list[str]:
    """The words of a label, in lower case.

    >>> _split_words("Traffic light")
    ['traffic', 'light']
    """
    return re.findall(r"[^\W_]+", label.lower()) or [label.lower()]


def _fixed_vector(word: str, dim: int) -> np.ndarray:
    """A pseudo-random vector computed from a hash of the word. Its entries are uniform around 0."""
    digest = hashlib.shake_256(word.encode()).digest(4 * dim)
    unit = np.frombuffer(digest, "<u4").astype(np.float64) / 2**32
    return (2 * unit - 1) * (_STD * 3**0.5)


def _find_words(path: str | Path, words: set[str]) -> tuple[dict[str, np.ndarray], int]:
    """The result of `_read_glove`. For a large file it is cached."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise UserError(f"cannot read the word vectors {path}: {error.strerror}") from None
    if status.st_size < _SMALL_FILE:
        return _read_glove(path, words)
    key = json.dumps([os.path.abspath(path), status.st_size, status.st_mtime_ns, sorted(words)])
    name = f"words-{hashlib.sha256(key.encode()).hexdigest()}"
    if cached := _load_cached(name, words):
        return cached
    found, dim = _read_glove(path, words)
    vectors = np.array(list(found.values())).reshape(len(found), dim)
    cache.save(name, words=np.array(list(found), str), vectors=vectors)
    return found, dim


def _load_cached(name: str, words: set[str]) -> tuple[dict[str, np.ndarray], int] | None:
    """The cached vectors and their length; None if there are none or the cache file is damaged."""
    arrays = cache.load(name) or {}
    names, vectors = arrays.get("words"), arrays.get("vectors")
    if names is None or vectors is None or vectors.ndim != 2 or names.shape != vectors.shape[:1]:
        return None
    if vectors.dtype != np.float64 or not np.isfinite(vectors).all() or not words.issuperset(names.tolist()):
        return None
    return dict(zip(names.tolist(), vectors, strict=True)), vectors.shape[1]


def _read_glove(path: str | Path, words: set[str]) -> tuple[dict[str, np.ndarray], int]:
    """The vectors of `words` in a GloVe text file, and their length.

    The file has one line `word v1 v2 …` per word. Only the first line of the file and of each of `words` is parsed.
    """
    wanted = {word.encode(): word for word in words}
    found: dict[str, np.ndarray] = {}
    dim = 0
    try:
        with open_regular(path) as lines:
            number = 0
            while (line := lines.readline(_MAX_LINE)) and (wanted or not dim):
                number += 1
                word, _, rest = line.partition(b" ")
                name = wanted.pop(word.rstrip(), None)
                if name is None and dim:
                    continue
                vector = _parse_vector(rest)
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


def _parse_vector(text: bytes) -> np.ndarray:
    """The numbers in `text`; an empty array if it has anything else."""
    try:
        return np.array(text.split(), np.float64)
    except ValueError:
        return np.empty(0)
