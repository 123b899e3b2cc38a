"""Progress of a run, for displays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lifelabel.config.config import Config
from lifelabel.streams import Task


class Callback:
    """Called by a run as it progresses. This class does nothing; a subclass can display the progress."""

    def begin(self, config: Config, tasks: Sequence[Task], images: int, task: int, learned: int) -> None:
        """Training starts, or resumes in task index `task` after `learned` of `images` images."""

    def before_step(self) -> None:
        """A batch has been loaded, and its step begins. All processes of the run have started."""

    def steps(self, task: int, images: int, losses: dict[str, float]) -> None:
        """Some steps are done: `images` images, and the losses of the last step."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """A task has been evaluated."""

    def note(self, line: str) -> None:
        """A line of information for the user."""

    def stopping(self) -> None:
        """The first Ctrl-C or SIGTERM has come. Called by the signal handler, in the middle of anything."""

    def end(self) -> None:
        """Training has ended, also if it was stopped or failed."""
