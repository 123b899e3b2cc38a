"""A method that cheats, run in a process of its own by test_keeper.py; prints what it found as JSON.

It asks for hidden labels by name, asks the keeper for other tasks, and searches every object that the garbage
collector or a stack frame can reach for arrays with a hidden column in them. With the argument `control` the stream
is held in this process on purpose: then the search must find it.
"""

import gc
import json
import sys
import tempfile

import numpy as np
import torch

from lifelabel import engine, streams
from lifelabel.errors import HiddenLabel
from lifelabel.keeper import Keeper
from lifelabel.methods import METHODS
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.streams.base import Labels, Split, Stream

STREAM = {"train_images": 100, "test_images": 60, "size": 32}
FOUND = {"errors": [], "kinds": [], "arrays": [], "steps": 0}
HELD = streams.build("scenes", STREAM) if sys.argv[1:] == ["control"] else None


def everything():
    """Every object that can be reached from what the collector knows and from the stack."""
    stack, seen = [gc.get_objects()], set()
    frame = sys._getframe()
    while frame:
        stack.append(list(frame.f_locals.values()))
        frame = frame.f_back
    while stack:
        for item in stack.pop():
            if id(item) not in seen and item is not FOUND:
                seen.add(id(item))
                yield item
                if not isinstance(item, type):
                    stack.append(gc.get_referents(item))


class Cheat(FineTuning):
    def observe(self, batch):
        if FOUND["steps"] == 1:
            self.cheat(batch)
        FOUND["steps"] += 1
        return super().observe(batch)

    def cheat(self, batch):
        keeper = None
        for item in everything():
            if isinstance(item, Keeper):
                keeper = item
            if isinstance(item, (Stream, Split, Labels)):
                FOUND["kinds"].append(type(item).__name__)
            elif isinstance(item, (np.ndarray, torch.Tensor)) and item.ndim == 2 and len(item) > 10:
                FOUND["arrays"].append(np.array(item.detach().cpu() if isinstance(item, torch.Tensor) else item))
        asked = [lambda: batch.label("flower"), lambda: keeper.view(4), lambda: keeper.joint_view(), keeper.truth]
        for ask in asked:
            try:
                FOUND["errors"].append(f"answered: {ask()}")
            except HiddenLabel as error:
                FOUND["errors"].append(str(error))


def hidden_columns():
    """How many arrays that were found have a column with the labels of a class of a later task, or of a test class."""
    stream = streams.build("scenes", STREAM)
    own = stream.train.labels.dense(slice(4, 20))[stream.train.rows[0]]
    columns = [*own.T, *stream.train.labels.dense()[:, 4:].T, *stream.test.labels.dense().T]
    wanted = {column.tobytes() for column in columns if column.any()}
    return sum(any((array[:, k] == 1).tobytes() in wanted for k in range(array.shape[1])) for array in FOUND["arrays"])


if __name__ == "__main__":
    METHODS["cheat"] = Cheat
    Cheat.summary = "cheats"
    options = {"method": "cheat", "device": "cpu", "stream_options": STREAM}
    engine.train(tempfile.mkdtemp(), options)
    visible = sum(array.shape[1] == 4 and len(array) == 20 for array in FOUND["arrays"])
    print(json.dumps({"errors": FOUND["errors"], "kinds": FOUND["kinds"], "hidden": hidden_columns(),
                      "visible": visible}))  # fmt: skip
