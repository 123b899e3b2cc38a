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

import csv
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import lifelabel
from benchmarks.common import Results, make_parser
from lifelabel.streams import coco, paper
from lifelabel.streams.protocols import ProtocolOptions, make_stream
from lifelabel.streams.stream import Stream

_NEW = 4


def main() -> None:
    parser = make_parser(__doc__, root=Path, methods="weighted-ridge,agcn", weights=str, words=str, out=Path)
    given = parser.parse_args()
    if given.root is None:
        parser.error("give --root DIR")
    out = given.out or Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    stream = _stream(given.root, out)
    tables = _write_tables(stream, out)
    files = {name: value for name in ("weights", "words") if (value := getattr(given, name))}
    options = {"root": str(given.root), "device": given.device, **files}
    train, test = sum(map(len, stream.train.rows)), sum(map(len, stream.test.rows))
    new = f"new classes: {', '.join(stream.tasks[-1].classes)}"
    results = Results(given, "method, labels of old classes", new, f"{train:,} training images, {test:,} test images")
    for method in given.methods.split(","):
        _compare(method, tables, out / method, stream, options, results)


def _compare(
    method: str, tables: Mapping[str, Path], out: Path, stream: Stream, options: Mapping[str, Any], results: Results
) -> None:
    for name in ("ten", "eleven"):
        order: dict[str, Any] = {"stream_options": {"order": "alphabetical"}, "overwrite": True}
        lifelabel.train(out / name, stream=str(tables[name]), method=method, **order, **options)
    before, whole = _ap(out / "ten", stream), _ap(out / "eleven", stream)
    for name, labels in (("new", "given"), ("new-only", "not given")):
        lifelabel.extend(out / "ten", tables[name], out / name, root=options["root"], overwrite=True)
        after = _ap(out / name, stream)
        old, new = list(before), stream.tasks[-1].classes
        figures = {"old before": _mean(before, old), "old after": _mean(after, old)}
        figures["change"] = figures["old after"] - figures["old before"]
        figures |= {"new": _mean(after, new), "new in one stream": _mean(whole, new)}
        results.add(f"{method}, {labels}", {key: 100 * value for key, value in figures.items()})


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
