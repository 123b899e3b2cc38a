"""What the processes of a run share: the batch that they have decoded together, and which process writes files."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import numpy as np
import torch

from lifelabel.images.loader import Loaded
from lifelabel.parallel.group import Group
from lifelabel.runs.folder import RunFolder
from lifelabel.runs.lines import JsonLines


class BatchExchange:
    """Makes the whole batch of a step from the rows that each process has decoded.

    The processes also agree whether to stop, and whether a checkpoint is due. Calls must be in step.
    """

    def __init__(self, group: Group, batch_size: int, image_size: int):
        self.group = group
        rows = math.ceil(batch_size / group.size)
        pixels = ("pixels", np.uint8, (rows, image_size, image_size, 3))
        flags = [(name, bool) for name in ("stop", "due", "bad")]
        self.message = np.zeros(1, [*flags, ("good", bool, rows), ("hashes", np.uint64, rows), pixels])

    def __call__(self, own: Loaded, count: int, stop: bool, due: bool) -> tuple[Loaded, bool, bool]:
        """The `count` rows of the batch, whether a process was asked to stop, and whether the first wants to save."""
        if self.group.size == 1:
            return own, stop, due
        message = self.message[0]
        message["stop"], message["due"], message["bad"] = stop, due, bool(own.bad)
        message["good"] = False
        message["good"][own.good] = True
        message["pixels"][: len(own.pixels)] = own.pixels.numpy()
        if own.hashes is not None:
            message["hashes"][: len(own.hashes)] = own.hashes
        every = self.group.gather_bytes(self.message.view(np.uint8)).view(self.message.dtype)[:, 0]
        bad = [each for part in self.group.collect(own.bad) for each in part] if every["bad"].any() else []
        starts = [self.group.rows(count, rank).start for rank in range(self.group.size)]
        good = [start + np.flatnonzero(mask) for start, mask in zip(starts, every["good"], strict=True)]
        pixels = [part[: len(rows)] for part, rows in zip(every["pixels"], good, strict=True)]
        hashes = [part[: len(rows)] for part, rows in zip(every["hashes"], good, strict=True)]
        known = None if own.hashes is None else np.concatenate(hashes)
        batch = Loaded(torch.from_numpy(np.concatenate(pixels)), np.concatenate(good), bad, known)
        return batch, bool(every["stop"].any()), bool(every["due"][0])


class SilentFolder(RunFolder):
    """The run folder in a process that only reads: the first process of the run writes the files."""

    @contextlib.contextmanager
    def new(self, overwrite: bool) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def write_text(self, name: str, text: str) -> None:
        return None

    def write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        return None

    def write_checkpoint(self, write: Callable[[IO[bytes]], None]) -> None:
        return None


class SilentLines(JsonLines):
    """A .jsonl file in a process that only reads."""

    sha256 = ""

    def __init__(self) -> None:
        return None

    def write(self, row: dict[str, Any]) -> None:
        return None

    def sync(self) -> int:
        return 0

    def close(self) -> None:
        return None
