"""What a stream holds, in figures: its tasks, its classes, what its labels hide, what is wrong with its files.

`describe` counts and `summary.py` and `sheets.py` show what it counted.
"""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np

from lifelabel import processes
from lifelabel.errors import UserError
from lifelabel.streams import paper
from lifelabel.streams.base import BadImage, ImageSource, Split, Stream, true_matrix
from lifelabel.streams.protocols import special_and_mixed

Progress = Callable[[int, int], None]
"""Called with how many of how many images have been opened."""

STRONGEST = 20
"""Pairs of classes that are listed."""
LARGEST_MATRIX = 200
"""Classes up to which the whole co-occurrence is kept and drawn."""


def describe(stream: Stream, decode: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """The figures of a stream, as JSON holds them; None stands for what cannot be known.

    With `decode` every image is opened, and those that cannot be used are counted by reason and listed.
    """
    tasks = _tasks(stream)
    test = stream.test.labels.take(np.concatenate(stream.test.rows))
    return {
        "name": stream.name,
        "dataset": stream.dataset,
        "sha256": stream.fingerprint,
        "rules": json.loads(json.dumps(stream.rules, default=str), parse_constant=str),
        "splits": {"train": _split(stream.train), "test": _split(stream.test)},
        "labels_per_image": {**_labels_per_image(stream, tasks), "test": _share(len(test.column), len(test))},
        "hidden": _hidden(stream, tasks),
        "tasks": tasks,
        "classes": _classes(stream, tasks),
        "cooccurrence": _cooccurrence(stream),
        "bad": _bad(stream, progress) if decode else None,
        "problems": stream.problems.lines(),
    }


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


def _split(split: Split) -> dict[str, int | None]:
    used = split.used()
    names = {split.names[row] for row in used.tolist()}
    missing: int | None = int(np.count_nonzero(~split.images.present[used]))
    if getattr(split.images, "root", used) is None:
        missing = None  # nobody said where to look
    return {"images": len(names), "rows": sum(map(len, split.rows)), "missing": missing}


def _tasks(stream: Stream) -> list[dict[str, Any]]:
    the_papers = stream.dataset and tuple(task.classes for task in stream.tasks) == paper.TASKS.get(stream.dataset)
    printed = paper.SPECIAL_AND_MIXED[stream.dataset] if the_papers else None
    counted = special_and_mixed(stream)
    so_far = np.cumsum([len(rows) for rows in stream.test.rows]).tolist()
    out = []
    for index, (task, rows) in enumerate(zip(stream.tasks, stream.train.rows, strict=True)):
        labels = stream.train.labels.take(rows)
        visible = labels.within(task.columns)
        special, mixed = counted[index] if counted else (None, None)
        out.append({
            "task": index + 1,
            "classes": list(task.classes),
            "train": len(rows),
            "special": special,
            "mixed": mixed,
            "paper": list(printed[index]) if printed else None,
            "test_new": len(stream.test.rows[index]),
            "test_cumulative": so_far[index],
            "images_per_class": visible.counts()[task.columns].tolist(),
            "labels": {"visible": len(visible.column), "true": len(labels.column) if stream.train.complete else None},
        })  # fmt: skip
    return out


def _labels_per_image(stream: Stream, tasks: list[dict[str, Any]]) -> dict[str, float | None]:
    rows = sum(task["train"] for task in tasks)
    visible = sum(task["labels"]["visible"] for task in tasks)
    true = sum(task["labels"]["true"] for task in tasks) if stream.train.complete else None
    return {"true": None if true is None else _share(true, rows), "visible": _share(visible, rows)}


def _hidden(stream: Stream, tasks: list[dict[str, Any]]) -> dict[str, float | None]:
    """How much of what training images show is kept from the learner: shares of the labels, and of the images."""
    if not stream.train.complete:
        return {"labels": None, "images": None}
    true = sum(task["labels"]["true"] for task in tasks)
    hidden = true - sum(task["labels"]["visible"] for task in tasks)
    mixed = sum(task["mixed"] for task in tasks)
    return {"labels": _share(hidden, true), "images": _share(mixed, sum(task["train"] for task in tasks))}


def _classes(stream: Stream, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    true = stream.train.labels.take(stream.train.used()).counts().tolist() if stream.train.complete else None
    test = stream.test.labels.take(stream.test.used()).counts().tolist()
    visible = [count for task in tasks for count in task["images_per_class"]]
    task_of = [task.index + 1 for task in stream.tasks for _ in task.classes]
    return [
        {"name": name, "task": task_of[c], "visible": visible[c], "true": true[c] if true else None, "test": test[c]}
        for c, name in enumerate(stream.classes)
    ]


def _cooccurrence(stream: Stream) -> dict[str, Any]:
    split, source = (stream.train, "training") if stream.train.complete else (stream.test, "test")
    labels = split.labels.take(split.used())
    first, second, both = labels.pairs()
    counts = labels.counts()
    matrix = true_matrix(labels) if labels.classes <= LARGEST_MATRIX else None
    return {
        "labels": f"complete {source} labels",
        "images": len(labels),
        "strongest": _strongest(stream, counts, np.r_[first, second], np.r_[second, first], np.r_[both, both]),
        "matrix": None if matrix is None else matrix.round(4).tolist(),
    }


def _strongest(
    stream: Stream, counts: np.ndarray, shown: np.ndarray, given: np.ndarray, both: np.ndarray
) -> list[dict[str, Any]]:
    """The highest P(shown | given), given a class of at least 5 images and of one image in a thousand."""
    images = len((stream.train if stream.train.complete else stream.test).used())
    often = counts[given] >= max(5, images / 1000)
    shown, given, both = shown[often], given[often], both[often]
    chance = both / counts[given]
    classes, task_of = stream.classes, [task.index + 1 for task in stream.tasks for _ in task.classes]
    return [
        {
            "class": classes[shown[k]], "given": classes[given[k]], "probability": round(float(chance[k]), 4),
            "prior": round(float(counts[shown[k]] / images), 4), "images": int(both[k]),
            "tasks": [task_of[shown[k]], task_of[given[k]]],
        }
        for k in np.lexsort((shown, given, -both, -chance))[:STRONGEST].tolist()
    ]  # fmt: skip


# Opening every image

CHUNK = 64
FEW = 256
"""Images that are opened faster than processes start."""
LEAST = 64
"""Pixels a side: a file is read to its end at any size, and a JPEG is decoded faster at a small one."""


def _bad(stream: Stream, progress: Progress | None) -> dict[str, Any]:
    work = []
    for kind, split in (("train", stream.train), ("test", stream.test)):
        used = split.used()
        work.append((kind, split.images, used[split.images.present[used]]))
    total, done = sum(len(rows) for _, _, rows in work), 0
    images = []
    for kind, source, rows in work:
        for opened, bad in open_all(source, rows):
            done += opened
            images += [{"split": kind, "image": source.name(row), "reason": reason} for row, reason in bad]
            if progress:
                progress(done, total)
    reasons = Counter(image["reason"] for image in images)
    return {"opened": total, "reasons": dict(reasons.most_common()), "images": images}


def open_all(source: ImageSource, rows: np.ndarray) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Open images, in worker processes where there are many: chunk by chunk, how many and which cannot be used."""
    chunks = [rows[first : first + CHUNK] for first in range(0, len(rows), CHUNK)]
    if len(rows) <= FEW:
        yield from (_open(source, chunk) for chunk in chunks)
        return
    context = multiprocessing.get_context(processes.START)
    pool = ProcessPoolExecutor(processes.cores(), context, _begin_worker, (source,))
    try:
        yield from pool.map(_open_in_worker, chunks)
    except BrokenProcessPool:
        raise UserError(f"a process that opened images of {source.name(0)} … died: is there enough memory?") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _open(source: ImageSource, rows: np.ndarray) -> tuple[int, list[tuple[int, str]]]:
    bad = []
    for row in rows.tolist():
        try:
            source.picture(row, LEAST)
        except BadImage as error:
            bad.append((row, str(error)))
    return len(rows), bad


_worker: dict[str, ImageSource] = {}
"""In a worker process, the images it opens: they travel once, not with every chunk."""


def _begin_worker(source: ImageSource) -> None:
    processes.settle_in()
    _worker["images"] = source


def _open_in_worker(rows: np.ndarray) -> tuple[int, list[tuple[int, str]]]:
    return _open(_worker["images"], rows)
