"""The images of a split by row number, without their labels, and the problems found in them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Protocol, overload

import numpy as np
from PIL import Image

from lifelabel.utils.text import counted, printable


class Names(Sequence[str]):
    """A sequence of strings, stored in two arrays.

    Each string takes its UTF-8 bytes and 8 more. Forked processes share the arrays.

    >>> names = Names(["a.jpg", "été.jpg"])
    >>> names[1], len(names), list(names.take(np.array([1])))
    ('été.jpg', 2, ['été.jpg'])
    """

    def __init__(self, texts: Iterable[str]):
        encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
        self.end = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        self.bytes = np.frombuffer(b"".join(encoded), np.uint8)

    def __len__(self) -> int:
        return len(self.end)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        row %= len(self)
        start = self.end[row - 1] if row else 0
        return self.bytes[start : self.end[row]].tobytes().decode("utf-8", "surrogateescape")

    def take(self, rows: np.ndarray) -> Names:
        """The strings of the given rows, in that order."""
        begin = np.concatenate([[0], self.end])[rows]
        lengths = self.end[rows] - begin
        taken = Names(())
        taken.end = np.cumsum(lengths)
        taken.bytes = self.bytes[np.arange(lengths.sum()) + np.repeat(begin - taken.end + lengths, lengths)]
        return taken


class ImageSource(Protocol):
    """The images of a split by row number. The same row always gives the same image.

    The training process has a copy of it from another process. This copy must not hold labels.
    """

    present: np.ndarray
    """For each row, whether the image exists (for photographs: whether there is a file)."""
    drawn_from_labels: bool
    """True if images are drawn from labels. Then only a worker process may call `read`."""

    def __len__(self) -> int: ...

    def name(self, row: int) -> str:
        """The name of the image in messages."""

    def read(self, row: int, min_side: int = 0) -> Image.Image:
        """The image, upright, in RGB. Raises `BadImage` if it cannot be used.

        With `min_side` a large image may be returned at a reduced size, with no side below `min_side` pixels.
        """


class BadImage(Exception):
    """An image that cannot be used. The message is the reason."""


class Problems:
    """Problems found in data: for each kind a count and up to five examples.

    >>> problems = Problems()
    >>> problems.add("rows without an image", "line 3")
    >>> problems.lines()
    ['1 row without an image: line 3']
    """

    MAX_EXAMPLES = 5

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.examples: dict[str, list[str]] = {}

    def add(self, kind: str, example: str = "", count: int = 1) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + count
        examples = self.examples.setdefault(kind, [])
        if example and len(examples) < self.MAX_EXAMPLES:
            examples.append(printable(example[:200]))

    def add_all(self, kind: str, names: Sequence[str], mask: np.ndarray | None = None) -> None:
        """Add all names, or the names that `mask` marks, as problems of one kind."""
        rows = np.flatnonzero(mask) if mask is not None else np.arange(len(names))
        for row in rows[: self.MAX_EXAMPLES].tolist():
            self.add(kind, names[row])
        if len(rows) > self.MAX_EXAMPLES:
            self.add(kind, count=len(rows) - self.MAX_EXAMPLES)

    def add_from(self, other: Problems) -> None:
        """Add the problems that were found elsewhere."""
        for kind, count in other.counts.items():
            self.add(kind, ", ".join(other.examples[kind]), count)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def brief(self) -> str:
        """The counts in brackets, for the end of an error message. Empty if there is no problem."""
        kinds = "; ".join(counted(count, kind) for kind, count in self.counts.items())
        return f" ({kinds})" if kinds else ""

    def lines(self) -> list[str]:
        """One line per kind, in the order of first occurrence."""
        out = []
        for kind, count in self.counts.items():
            examples = ", ".join(self.examples[kind])
            more = ", …" if examples and count > len(self.examples[kind]) else ""
            out.append(counted(count, kind) + (f": {examples}{more}" if examples else ""))
        return out


def name_draws(salt: str, names: Iterable[str]) -> np.ndarray:
    """A 64-bit hash of each name and the salt. It is the same on every machine."""
    salted = hashlib.blake2b(salt.encode() + b"\n", digest_size=8)
    digests = bytearray()
    for name in names:
        one = salted.copy()
        one.update(name.encode("utf-8", "surrogateescape"))
        digests += one.digest()
    return np.frombuffer(bytes(digests), ">u8").astype(np.uint64)
