"""Blurry tasks (RM, Bang et al., CVPR 2021): a share of the training images of each task moves to other tasks.

The task that an image moves out of is its home task. docs/streams/protocols.md states which labels it has in the other.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from lifelabel.errors import UserError
from lifelabel.images.source import name_draws
from lifelabel.streams.stream import Stream

BLURRY_HELP = "share of the training images of each task that is moved to other tasks, drawn by the seed"


def blur(stream: Stream, share: float, seed: int) -> Stream:
    """The stream with the given share of the images of each task in other tasks, each of which is equally likely.

    Which images move, and where to, depends on their names and the seed only. At least one image per task is not moved.
    """
    train, first = stream.train, stream.learned
    if stream.overlapping or len(train.used()) < sum(map(len, train.rows)):
        raise UserError(
            f"stream.blurry={share}: images of {stream.name} belong to several tasks already, because its tasks "
            "overlap; remove it"
        )
    others = len(stream.tasks) - first - 1
    if others < 1:
        raise UserError(f"stream.blurry={share}: {stream.name} has one task only; give more tasks, or remove it")
    draws, targets = (name_draws(f"{seed} blurry {what}", train.names) for what in ("image", "task"))
    home, now = np.zeros((2, len(train)), np.int32)
    for index, rows in enumerate(train.rows):
        home[rows] = now[rows] = index
        count = min(int(share * len(rows) + 0.5), len(rows) - 1) if index >= first else 0
        moved = rows[np.argsort(draws[rows], kind="stable")[: max(count, 0)]]
        target = first + (targets[moved] % np.uint64(others)).astype(np.int32)
        now[moved] = target + (target >= index)
    # by name: another order would reveal which images have moved, and from where
    by_name = np.array(sorted(train.used().tolist(), key=train.names.__getitem__), np.int64)
    rows_by_task = tuple(by_name[now[by_name] == index] for index in range(len(stream.tasks)))
    proxy = stream.proxy
    return dataclasses.replace(
        stream, train=dataclasses.replace(train, rows=rows_by_task, home=home),
        rules={**stream.rules, "seed": seed, "blurry": share},
        proxy=None if proxy is None else lambda: blur(proxy(), share, seed),
    )  # fmt: skip
