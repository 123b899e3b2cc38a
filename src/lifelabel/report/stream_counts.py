"""The description of a stream: counts of its tasks, classes, hidden labels and co-occurrences, and its bad images."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.images.hashes import hash_images
from lifelabel.images.source import ImageSource
from lifelabel.streams import paper
from lifelabel.streams.labels import Labels
from lifelabel.streams.protocols import special_and_mixed
from lifelabel.streams.stream import Split, Stream, true_matrix

Progress = Callable[[int, int], None]
"""Called with the number of images that are done, and the number of all images."""

MAX_MATRIX_CLASSES = 200
"""Up to this many classes, a description has the complete co-occurrence matrix."""
_MAX_PAIRS = 20
"""Pairs of classes in the list of the strongest co-occurrences."""
_MIN_GIVEN_IMAGES = 5
"""P(C_i | C_j) is listed only if at least this many images have C_j."""
MAX_OPENED = 10_000
"""Up to this many photographs are opened without being asked for: on two cores, this takes about 20 seconds."""
_MIN_SIDE = 64
"""Pixels: a file is read to its end at any size, and a JPEG is decoded faster at a small one."""


def describe(
    stream: Stream, decode: bool | None = False, progress: Progress | None = None, root_given: bool = True
) -> dict[str, Any]:
    """The counts of a stream in the form of stream.json. A value that is not known is None.

    With `decode`, every image is opened. Images that cannot be used are counted by reason and listed, and so are images
    with equal pixels. None: only photographs, if there are at most `MAX_OPENED` of them. `root_given`
    states whether the user gave the folder of the images, for the report of missing files.
    """
    if decode is None:
        decode = stream.image_size is None and len(stream.train) + len(stream.test) <= MAX_OPENED
    tasks = _tasks(stream)
    return {
        "name": stream.name,
        "dataset": stream.dataset,
        "sha256": stream.fingerprint,
        "rules": json.loads(json.dumps(stream.rules, default=str), parse_constant=str),
        "splits": {"train": _split(stream.train), "test": _split(stream.test)},
        **_labels(stream, tasks),
        "tasks": tasks,
        "classes": _classes(stream, tasks),
        "cooccurrence": _cooccurrence(stream),
        **(_opened(stream, progress) if decode else {"bad": None, "equal": None}),
        "problems": [*stream.problems.lines(), *_missing(stream, root_given)],
    }


def _share(part: float, total: float) -> float | None:
    return float(part / total) if total else None


def _split(split: Split) -> dict[str, int | None]:
    used = split.used()
    names = {split.names[row] for row in used.tolist()}
    missing: int | None = int(np.count_nonzero(~split.images.present[used]))
    if getattr(split.images, "root", used) is None:
        missing = None  # the folder of the images is not given
    return {"images": len(names), "rows": sum(map(len, split.rows)), "missing": missing}


def _missing(stream: Stream, root_given: bool) -> list[str]:
    """One line if images have no file; none if all have one, or if the stream has no folder of images."""
    used = [(split, split.used()) for split in (stream.train, stream.test)]
    missing = [(split, rows[~split.images.present[rows]]) for split, rows in used]
    count, total = (sum(len(rows) for _, rows in splits) for splits in (missing, used))
    root = getattr(stream.train.images, "root", None)
    if not count or root is None:
        return []
    example = next(split.names[int(rows[0])] for split, rows in missing if len(rows))
    hint = "correct --root or the names" if root_given else "give --root DIR, their folder (no --root was given)"
    return [f"{count:,} of {total:,} images have no file, such as {Path(root) / example}: {hint}"]


def _tasks(stream: Stream) -> list[dict[str, Any]]:
    is_of_paper = stream.dataset and tuple(task.classes for task in stream.tasks) == paper.TASKS.get(stream.dataset)
    in_paper = paper.SPECIAL_AND_MIXED[stream.dataset] if is_of_paper else None
    counts = special_and_mixed(stream)
    cumulative = np.cumsum([len(rows) for rows in stream.test.rows]).tolist()
    out = []
    for index, (task, rows) in enumerate(zip(stream.tasks, stream.train.rows, strict=True)):
        labels = stream.train.labels.take(rows)
        visible = stream.shown(task, rows, labels)
        special, mixed = counts[index] if counts else (None, None)
        out.append({
            "task": index + 1,
            **({"name": task.name} if task.name else {}),
            "classes": list(task.classes),
            "train": len(rows),
            "special": special,
            "mixed": mixed,
            "paper": list(in_paper[index]) if in_paper else None,
            "test_new": len(stream.test.rows[index]),
            "test_cumulative": cumulative[index],
            "images_per_class": visible.counts()[task.columns].tolist(),
            "labels": {"visible": len(visible.column), "true": len(labels.column) if stream.train.complete else None},
            "rows_with_hidden_labels": int(np.count_nonzero(visible.per_image() < labels.per_image())),
        })  # fmt: skip
    return out


def _labels(stream: Stream, tasks: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """The labels per image, and the shares of hidden training labels and of training rows that have one."""
    rows, visible = sum(task["train"] for task in tasks), sum(task["labels"]["visible"] for task in tasks)
    test = stream.test.labels.take(np.concatenate(stream.test.rows))
    per_image = {"true": None, "visible": _share(visible, rows), "test": _share(len(test.column), len(test))}
    if not stream.train.complete:
        return {"labels_per_image": per_image, "hidden": {"labels": None, "images": None}}
    true = sum(task["labels"]["true"] for task in tasks)
    with_hidden = sum(task["rows_with_hidden_labels"] for task in tasks)
    hidden = {"labels": _share(true - visible, true), "images": _share(with_hidden, rows)}
    return {"labels_per_image": {**per_image, "true": _share(true, rows)}, "hidden": hidden}


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
    matrix = true_matrix(labels) if labels.classes <= MAX_MATRIX_CLASSES else None
    return {
        "labels": f"complete {source} labels",
        "images": len(labels),
        "strongest": _strongest(stream, labels),
        "matrix": None if matrix is None else matrix.round(4).tolist(),
    }


def _strongest(stream: Stream, labels: Labels) -> list[dict[str, Any]]:
    """The highest P(C_i | C_j), for classes C_j of at least 5 images and of one image in a thousand."""
    counts, images = labels.counts(), len(labels)
    frequent = counts >= max(_MIN_GIVEN_IMAGES, images / 1000)
    best: tuple[np.ndarray, ...] = (np.zeros(0, np.int64),) * 3
    for left, right, pair_images in labels.pairs():
        for one, other in ((left, right), (right, left)):
            kept = frequent[other]
            parts = zip(best, (one[kept], other[kept], pair_images[kept]), strict=True)
            i, j, both = (np.concatenate(part) for part in parts)
            first = _first((-both / counts[j], -both, j, i), _MAX_PAIRS)
            best = i[first], j[first], both[first]
    i, j, both = best
    classes, task_of = stream.classes, [task.index + 1 for task in stream.tasks for _ in task.classes]
    return [
        {
            "class": classes[i[k]], "given": classes[j[k]], "probability": round(float(both[k] / counts[j[k]]), 4),
            "prior": round(float(counts[i[k]] / images), 4), "images": int(both[k]),
            "tasks": [task_of[i[k]], task_of[j[k]]],
        }
        for k in range(len(i))
    ]  # fmt: skip


def _first(keys: Sequence[np.ndarray], count: int) -> np.ndarray:
    """The indexes of the smallest entries, sorted by the first key, then by the second one and so on.

    A complete sort of millions of pairs would take most of the time of a description.

    >>> _first((np.array([1, 0, 1, 1]), np.array([9, 9, 3, 5])), 3).tolist()
    [1, 2, 3]
    """
    left, chosen, missing = np.arange(len(keys[0])), np.zeros(0, np.int64), count
    for key in keys:
        if len(left) <= missing:
            break
        values = key[left]
        limit = np.partition(values, missing - 1)[missing - 1]
        chosen = np.concatenate([chosen, left[values < limit]])
        left, missing = left[values == limit], count - len(chosen)
    index = np.concatenate([chosen, left])
    return index[np.lexsort([key[index] for key in reversed(keys)])][:count]


# Opening every image


def _opened(stream: Stream, progress: Progress | None) -> dict[str, Any]:
    """The images that cannot be used, and those with equal pixels: `bad` and `equal` of a description."""
    work = []
    for kind, split in (("train", stream.train), ("test", stream.test)):
        used = split.used()
        work.append((kind, split.images, used[split.images.present[used]]))
    total, done = sum(len(rows) for _, _, rows in work), 0
    images, found = [], []
    for kind, source, rows in work:

        def advance(opened: int, _: int, before: int = done) -> None:
            if progress:
                progress(before + opened, total)

        hashes, bad = hash_images(source, rows, _MIN_SIDE, advance)
        done += len(rows)
        images += [{"split": kind, "image": source.name(row), "reason": reason} for row, reason in bad]
        found.append(hashes)
    reasons = Counter(image["reason"] for image in images)
    bad_images = {"opened": total, "reasons": dict(reasons.most_common()), "images": images}
    return {"bad": bad_images, "equal": _equal(work, np.concatenate(found))}


def _equal(work: Sequence[tuple[str, ImageSource, np.ndarray]], hashes: np.ndarray) -> list[list[dict[str, str]]]:
    """The groups of images with equal pixels. Those in both splits are first."""
    order = np.argsort(hashes, kind="stable")
    order = order[hashes[order] > 0]
    starts = np.flatnonzero(np.diff(hashes[order], prepend=0))
    ends = np.cumsum([len(rows) for _, _, rows in work])
    found = []
    for group in np.split(order, starts[1:]):
        if len(group) > 1:
            parts = np.searchsorted(ends, group, "right").tolist()
            places = [(work[part], int(index - ends[part])) for part, index in zip(parts, group, strict=True)]
            found.append(
                [{"split": kind, "image": source.name(int(rows[place]))} for (kind, source, rows), place in places]
            )
    return sorted(found, key=lambda images: (len({image["split"] for image in images}) < 2, images[0]["image"]))
