"""A method that tries to get hidden labels. test_label_server.py runs it in a process; it prints its results as JSON.

    python tests/engine/cheating.py scenes|photographs task|known|blurry [control]

It requests hidden labels by name, and from the label server the labels of other tasks, metrics of its own scores, and
another open task. It also searches every object that the garbage collector or a stack frame can reach for arrays that
have a hidden column. With `control` the stream is in this process on purpose: then the search must find it.
"""

import gc
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from lifelabel import streams
from lifelabel.engine import run as engine
from lifelabel.engine.label_server import LabelServer
from lifelabel.errors import HiddenLabel
from lifelabel.methods import METHODS
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.streams.labels import Labels
from lifelabel.streams.stream import Split, Stream

FOUND = {"errors": [], "kinds": [], "arrays": [], "steps": 0}


def everything():
    """Every object that can be reached from the objects of the collector and from the stack."""
    gc.unfreeze()  # the process is a fork of one whose objects are left out
    found, seen = gc.get_objects(), {id(FOUND)}
    frame = sys._getframe()
    while frame:
        found += frame.f_locals.values()
        frame = frame.f_back
    while found:
        new = {id(item): item for item in found if id(item) not in seen}
        seen.update(new)
        yield from new.values()
        found = gc.get_referents(*(item for item in new.values() if not isinstance(item, type)))


class Cheat(FineTuning):
    summary = "cheats"

    def observe(self, batch):
        if FOUND["steps"] == 1:
            self.cheat(batch)
        FOUND["steps"] += 1
        return super().observe(batch)

    def cheat(self, batch):
        label_server = None
        for item in everything():
            if not isinstance(item, (LabelServer, Stream, Split, Labels, np.ndarray, torch.Tensor)):
                continue
            if isinstance(item, LabelServer):
                label_server = item
            if isinstance(item, (Stream, Split, Labels)):
                FOUND["kinds"].append(type(item).__name__)
            if isinstance(item, Labels) and item.classes * len(item) < 1e6:
                FOUND["arrays"].append(item.dense())
            if isinstance(item, (np.ndarray, torch.Tensor)) and item.ndim == 2 and len(item) > 10:
                FOUND["arrays"].append(np.array(item.detach().cpu() if isinstance(item, torch.Tensor) else item))
        rows = label_server.info.test_rows
        nothing = np.zeros((len(rows), 4), np.float32)
        for request in (
            lambda: batch.label(label_server.info.tasks[-1].classes[0]),
            lambda: label_server.view(len(label_server.info.tasks) - 1),
            label_server.joint_view,
            label_server.truth,
            lambda: label_server._request("__getattribute__", "stream"),
            lambda: label_server._request("__setattr__", "open_task", 2),
            lambda: label_server.begin(2),
            lambda: label_server.submit_earlier(0, rows, nothing),
            lambda: label_server.judge(2, rows, nothing, None),
            lambda: label_server.judge(1, rows, nothing, None),
        ):
            try:
                FOUND["errors"].append(f"answered: {request()}")
            except HiddenLabel as error:
                FOUND["errors"].append(str(error))


def hidden_columns(stream):
    """The number of arrays that have a column with the labels of a class of a later task, or of a test class."""
    first_task = stream.train.labels.take(stream.train.rows[0]).dense(slice(4, 12))
    columns = [*first_task.T, *stream.train.labels.dense()[:, 4:].T, *stream.test.labels.dense().T]
    wanted = {column.tobytes() for column in columns if column.any()}
    return sum(any((array[:, k] == 1).tobytes() in wanted for k in range(array.shape[1])) for array in FOUND["arrays"])


def photographs(folder):
    """A table of 120 images, 12 classes and complete labels."""
    rng = np.random.default_rng(0)
    names = ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l")
    lines = ["image,split," + ",".join(names)]
    for i in range(120):
        Image.new("RGB", (8, 8), (2 * i, 0, 0)).save(folder / f"{i}.png")
        lines.append(
            f"{i}.png,{'train' if i % 3 else 'test'}," + ",".join(map(str, (rng.random(12) < 0.4).astype(int)))
        )
    (folder / "t.csv").write_text("\n".join(lines))
    return "table", {"file": str(folder / "t.csv"), "tasks": 3, "order": "source"}


if __name__ == "__main__":
    work = Path(tempfile.mkdtemp())
    small = {"classes": 12, "tasks": 3, "train_images": 90, "test_images": 60, "size": 32}
    name, options = ("scenes", small) if sys.argv[1] == "scenes" else photographs(work)
    options |= {"labels": "task", "blurry": 0.4} if sys.argv[2] == "blurry" else {"labels": sys.argv[2]}
    held = streams.build(name, options) if sys.argv[3:] == ["control"] else None
    METHODS.register("cheat", Cheat)
    setting = {"method": "cheat", "device": "cpu", "backbone": "tiny", "weights": "none", "image_size": 32}
    ended = "well"
    try:
        engine.train(work / "run", {"stream": name, "stream_options": options, "batch_size": 8, **setting})
    except HiddenLabel as error:
        ended = str(error)
    found = {key: FOUND[key] for key in ("errors", "kinds")}
    print(json.dumps({**found, "ended": ended, "hidden": hidden_columns(streams.build(name, options))}))
