"""Stopping a run: the first Ctrl-C or SIGTERM ends it after the current step, with a checkpoint."""

from __future__ import annotations

import shlex
import signal

from lifelabel.config.config import Config
from lifelabel.engine.callback import Callback
from lifelabel.errors import Stopped
from lifelabel.parallel.group import Group
from lifelabel.parallel.torchrun import torchrun_command
from lifelabel.runs.folder import RunFolder


class Stopping:
    """Whether the user has asked a run to stop. Several processes must agree on it: then they stop at the same step."""

    def __init__(self, config: Config, folder: RunFolder, callback: Callback, group: Group):
        self.callback, self.group = callback, group
        self.requested = False
        plugins = [word for plugin in config.plugins for word in ("--plugin", plugin)]
        self.resume_command = shlex.join([*torchrun_command(), "train", "--resume", str(folder.path), *plugins])

    def request(self) -> None:
        """The handler of the signals. A second Ctrl-C is not caught."""
        if not self.requested:
            self.callback.stopping()
        self.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    @property
    def now(self) -> bool:
        """Whether this process may stop without asking others."""
        return self.requested and self.group.size == 1

    def check(self, agreed: bool = False) -> None:
        """Raise `Stopped` if a stop was requested. Several processes must have agreed on it."""
        if agreed or self.now:
            raise Stopped(f"stopped; resume with: {self.resume_command}")

    def agree(self) -> None:
        """Raise `Stopped` in all processes if one of them was asked to stop."""
        self.check(any(self.group.collect(self.requested)))
