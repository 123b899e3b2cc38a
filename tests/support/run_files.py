"""The files of a run folder, and a callback that stops a run."""

import json
import signal

from lifelabel.engine.callback import Callback


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def snapshot(folder):
    """The content of every file of a folder, also of its lock."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class SendSignal(Callback):
    """Sends a signal to this process when losses of the given task are read."""

    def __init__(self, task, number):
        self.task, self.number = task, number

    def steps(self, task, images, losses):
        if task == self.task:
            signal.raise_signal(self.number)
