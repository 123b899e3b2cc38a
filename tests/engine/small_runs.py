"""Runs that take less than a second: their options, callbacks, and the files that they write."""

import json
import shutil
import signal

import pytest
import yaml

from lifelabel.config.config import merge
from lifelabel.engine.callback import Callback
from lifelabel.errors import UserError

SMALL = {"train_images": 90, "test_images": 60, "classes": 8, "tasks": 3, "size": 32}
ON_PHOTOGRAPHS = {"backbone": "tiny", "weights": "none", "image_size": 32, "device": "cpu"}
BAD = {"7.png": "corrupt", "13.png": "no such file", "12.png": "an empty file", "40.png": "corrupt"}
"""Those of the `photographs` that cannot be read."""


def options(**more):
    return {"stream_options": SMALL, "device": "cpu", "method_options": {}, **more}


class Notes(Callback):
    """Keeps the lines for the user."""

    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


class Killed(Exception):
    pass


def kill():
    raise Killed


def stop():
    signal.raise_signal(signal.SIGTERM)


class At(Callback):
    """Calls `act` after some groups of steps, or after the evaluation of a task."""

    def __init__(self, count=None, act=stop, task=None):
        self.left, self.act, self.task = count, act, task

    def steps(self, task, images, losses):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.act()

    def evaluated(self, record):
        if record["task"] == self.task:
            self.act()


def edit_config(folder, **values):
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(merge(yaml.safe_load(path.read_text()), values)))


def copy_unfinished(folder, copy):
    """A copy of a run as if it had been killed at the very end."""
    shutil.copytree(folder, copy)
    (copy / "metrics.json").unlink()
    return copy


def error_of(call, *args, **more):
    """The text of the `UserError` that a call must raise."""
    with pytest.raises(UserError) as caught:
        call(*args, **more)
    return str(caught.value)


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_same_files(folder, other, *names):
    for name in names:
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name
