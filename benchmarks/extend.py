"""Four new classes after forty: `lifelabel extend` against the same classes as the last task of one stream.

    python -m benchmarks.extend --root DIR [--methods weighted-ridge,agcn] [--weights FILE] [--words FILE] [--out DIR]

DIR is a folder of COCO (photographs and annotations/instances_*.json). The stream has the 40 classes of the paper's
Split-COCO in ten tasks, and a task of the four most frequent other classes. Every training image belongs to one task
and has its labels of the classes so far; all test images have complete labels. For each method it trains

- the ten tasks, and then extends the run by the new task, with the labels of old classes and without them;
- all eleven tasks in one stream.

It prints the mAP of the old classes before and after the extension, and that of the new classes both ways.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import lifelabel
from lifelabel.streams import coco, paper
from lifelabel.streams.protocols import ProtocolOptions, make_stream
from lifelabel.streams.stream import Stream

_NEW = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True)
    parser.add_argument("--methods", default="weighted-ridge,agcn")
    parser.add_argument("--weights")
    parser.add_argument("--words")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    out = Path(arguments.out or tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    stream = _stream(Path(arguments.root), out)
    tables = _write_tables(stream, out)
    given = {name: value for name in ("weights", "words") if (value := getattr(arguments, name))}
    options = {"root": arguments.root, **given}
    train, test = sum(map(len, stream.train.rows)), sum(map(len, stream.test.rows))
    print(f"new classes: {', '.join(stream.tasks[-1].classes)}; {train:,} training images, {test:,} test images")
    print("| method | labels of old classes | old before | old after | change | new | new in one stream |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for method in arguments.methods.split(","):
        _compare(method, tables, out / method, stream, options)


def _compare(method: str, tables: Mapping[str, Path], out: Path, stream: Stream, options: Mapping[str, Any]) -> None:
    shared: dict[str, Any] = {
        "stream_options": {"order": "alphabetical"},
        "method": method,
        "overwrite": True,
        **options,
    }
    lifelabel.train(out / "ten", stream=str(tables["ten"]), **shared)
    lifelabel.train(out / "eleven", stream=str(tables["eleven"]), **shared)
    before, whole = _ap(out / "ten", stream), _ap(out / "eleven", stream)
    for name, given in (("new", "given"), ("new-only", "not given")):
        lifelabel.extend(out / "ten", tables[name], out / name, root=options["root"], overwrite=True)
        after = _ap(out / name, stream)
        old, new = list(before), stream.tasks[-1].classes
        change = _mean(after, old) - _mean(before, old)
        figures = _mean(before, old), _mean(after, old), change, _mean(after, new), _mean(whole, new)
        print(f"| {method} | {given} | " + " | ".join(f"{100 * value:.2f}" for value in figures) + " |", flush=True)


def _stream(root: Path, out: Path) -> Stream:
    """The paper's ten tasks and a task of the most frequent other classes."""
    found = coco.read(root)
    tasks = [list(task) for task in paper.TASKS["coco"]]
    counts = dict(zip(found.classes, found.train.labels.counts().tolist(), strict=True))
    others = sorted(set(found.classes) - {name for task in tasks for name in task}, key=lambda name: -counts[name])
    order = out / "order.txt"
    order.write_text("\n\n".join("\n".join(task) for task in [*tasks, sorted(others[:_NEW])]), encoding="utf-8")
    return make_stream(found, ProtocolOptions(order=str(order)), "coco", "coco")


def _write_tables(stream: Stream, out: Path) -> dict[str, Path]:
    """Tables of the ten tasks, of all eleven, and of the last one with and without the labels of old classes."""
    last = len(stream.tasks) - 1
    train = [(task, row) for task, rows in enumerate(stream.train.rows) for row in rows.tolist()]
    test = [(task, row) for task, rows in enumerate(stream.test.rows) for row in rows.tolist()]
    new = range(stream.tasks[last].offset, stream.tasks[last].end)
    old = range(new.start)
    kinds = {"ten": (train, old), "eleven": (train, range(new.stop)), "new": (train, range(new.stop))}
    tables = {}
    for name, (rows, columns) in {**kinds, "new-only": (train, new)}.items():
        lines = [["image", "labels", "task", "split"]]
        for kind, split, listed in (("train", stream.train, rows), ("test", stream.test, test)):
            for task, row in listed:
                if kind == "train" and (task == last) != name.startswith("new") and name != "eleven":
                    continue
                visible = range(stream.tasks[task].end) if kind == "train" else range(new.stop)
                labels = [stream.classes[c] for c in split.labels[row].tolist() if c in columns and c in visible]
                number = "" if name.startswith("new") else str(min(task, len(columns) // 4 - 1) + 1)
                if labels:
                    lines.append([split.names[row], ";".join(labels), number, kind])
        tables[name] = out / f"{name}.csv"
        with open(tables[name], "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(lines)
    return tables


def _ap(run: Path, stream: Stream) -> dict[str, float]:
    """The AP of each class of a run, on all test images of the stream."""
    model = lifelabel.load(run)
    rows = stream.test.used()
    logits, good, _ = model.score_source(stream.test.images, rows)
    labels = stream.test.labels.take(rows[good]).select_classes([stream.classes.index(name) for name in model.classes])
    values = lifelabel.metrics.average_precision(logits, labels.dense()).tolist()
    return dict(zip(model.classes, values, strict=True))


def _mean(ap: Mapping[str, float], names: Iterable[str]) -> float:
    values = [ap[name] for name in names]
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
