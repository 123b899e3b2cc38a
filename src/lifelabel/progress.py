"""Progress for people: a bar with task, images/s, losses and time left, and a line for every task done."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from lifelabel.config import Config
from lifelabel.engine import Watcher
from lifelabel.streams import TrainView


class Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} images/s" if speed else "– images/s")


class Bar(Watcher):
    """Draws on `console`; where that is no terminal, only the line of each task is printed."""

    def __init__(self, console: Console):
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn(), Speed(),
            TextColumn("{task.fields[losses]}", markup=False), TimeRemainingColumn(), console=console, transient=True,
            disable=not console.is_terminal,
        )  # fmt: skip

    def begin(self, config: Config, views: list[TrainView], task: int, images: int) -> None:
        self.method, self.views = config.method, views
        if images:
            self.console.print(f"{self.method}: going on after {images:,} images, in task {task + 1}/{len(views)}")
        total = sum(len(view) for view in views)
        self.id = self.bar.add_task(self.describe(task), total=total, completed=images, losses="")
        self.bar.start()

    def describe(self, task: int) -> str:
        names = self.views[min(task, len(self.views) - 1)].task.classes
        shown = ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
        return f"{self.method} · task {min(task + 1, len(self.views))}/{len(self.views)} ({shown})"

    def steps(self, task: int, images: int, losses: dict[str, float]) -> None:
        text = " ".join(f"{name} {value:.3g}" for name, value in losses.items())
        self.bar.update(self.id, advance=images, description=self.describe(task), losses=text)

    def evaluated(self, record: dict[str, Any]) -> None:
        seen = record["seen"]
        scores = "  ".join(
            f"{n} {'–' if seen[n] is None else format(100 * seen[n], '5.1f')}" for n in ("mAP", "CF1", "OF1")
        )
        self.console.print(f"{self.method}: after task {record['task']}  {scores}", highlight=False)

    def note(self, line: str) -> None:
        self.console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def end(self) -> None:
        self.bar.stop()
