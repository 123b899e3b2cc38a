"""Progress for people: a bar with task, images/s, losses and time left, and a line for every task done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from lifelabel.config import Config
from lifelabel.engine import Watcher
from lifelabel.errors import plain
from lifelabel.streams import Task


class Speed(ProgressColumn):
    def render(self, task: progress.Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} img/s" if speed else "– img/s", no_wrap=True)


class Bar(Watcher):
    """Draws on `console`; where that is no terminal, only the line of each task is printed.

    A narrow terminal loses the class names, then the bar; never the count, the speed or the time left.
    """

    def __init__(self, console: Console):
        self.console = console
        columns = [TextColumn("{task.description}", markup=False), MofNCompleteColumn(), Speed(), TimeRemainingColumn()]
        columns.append(TextColumn("{task.fields[losses]}", markup=False))
        if console.width >= 100:
            columns.insert(1, BarColumn(bar_width=20))
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def begin(self, config: Config, tasks: Sequence[Task], images: int, task: int, learned: int) -> None:
        self.method, self.tasks = config.method, tasks
        if learned:
            self.console.print(f"{self.method}: going on after {learned:,} images, in task {task + 1}/{len(tasks)}")
        self.id = self.bar.add_task(self.describe(task), total=images, completed=learned, losses="")
        self.bar.start()

    def describe(self, task: int) -> str:
        names = self.tasks[task].classes
        shown = f" ({', '.join(names[:4])}{' …' if len(names) > 4 else ''})" if self.console.width >= 130 else ""
        return f"{self.method} task {task + 1}/{len(self.tasks)}{shown}"

    def steps(self, task: int, images: int, losses: dict[str, float]) -> None:
        text = " ".join(f"{name} {value:.2g}" for name, value in losses.items())
        self.bar.update(self.id, advance=images, description=self.describe(task), losses=text)

    def evaluated(self, record: dict[str, Any]) -> None:
        seen = record["seen"]
        scores = "  ".join(
            f"{n} {'–' if seen[n] is None else format(100 * seen[n], '5.1f')}" for n in ("mAP", "CF1", "OF1")
        )
        self.console.print(f"{self.method}: after task {record['task']}  {scores}", highlight=False)

    def note(self, line: str) -> None:
        self.console.print(plain(line), style="yellow", highlight=False, markup=False, soft_wrap=True)

    def end(self) -> None:
        self.bar.stop()
