"""Progress for people: of one run, a bar and a line for every task done; of many runs, a bar and a line for each."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import progress
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from lifelabel.config import Config
from lifelabel.engine import Watcher
from lifelabel.errors import plain
from lifelabel.evaluate import CURVES
from lifelabel.runfolder import RunFolder
from lifelabel.streams import Task

if TYPE_CHECKING:
    from lifelabel.runner import Job, Outcome


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


class Display:
    """What a person sees: a bar over all runs and a line for each at work; lines alone where that is no terminal."""

    def __init__(self, console: Console | None, outcomes: Sequence[Outcome | None]):
        self.console = console or Console(quiet=True)
        self.outcomes = [outcome for outcome in outcomes if outcome]
        self.total, self.there = len(outcomes), len(self.outcomes)
        self.since = time.monotonic()
        self.said: set[str] = set()
        name, text = (TextColumn(f"{{task.{what}}}", markup=False) for what in ("description", "fields[text]"))
        self.bar = Progress(
            name, BarColumn(20), text, console=self.console, transient=True, auto_refresh=False, redirect_stdout=False,
            redirect_stderr=False, disable=not self.console.is_terminal,
        )  # fmt: skip  # it has no thread of its own: one at work while a run is forked could leave that run a lock
        self.all = self.bar.add_task("", total=self.total, text="")
        self.lines: dict[int, TaskID] = {}
        good = sum(not outcome.error for outcome in self.outcomes)
        if good:
            self.say(f"{good} of {self.total} runs are there already")
        for outcome in self.outcomes:
            if outcome.error:
                self.say(f"{outcome.planned.name}: {outcome.error}", "red")

    def __enter__(self) -> None:
        self.bar.start()

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def say(self, line: str, style: str | None = None) -> None:
        self.console.print(plain(line), style=style, highlight=False, markup=False, soft_wrap=True)

    def started(self, job: Job) -> None:
        self.lines[job.number] = self.bar.add_task(job.plan.name, total=1, text="")

    def left(self, job: Job) -> None:
        self.tell_notes(job)
        self.bar.remove_task(self.lines.pop(job.number))

    def ended(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        name = outcome.planned.name
        if outcome.error:
            self.say(f"{name}: {outcome.error}", "red")
        else:
            self.say(f"{name}: {_result(outcome.planned.folder)}")

    def tell_notes(self, job: Job) -> None:
        """What a run has to say; what several say alike is said once."""
        for line in job.notes:
            if line not in self.said:
                self.say(line, "yellow")
        self.said.update(job.notes)
        job.notes.clear()

    def show(self, running: Sequence[Job]) -> None:
        for job in running:
            self.tell_notes(job)
            self.bar.update(self.lines[job.number], completed=job.share, text=job.describe())
        done, failed = len(self.outcomes), sum(bool(outcome.error) for outcome in self.outcomes)
        partly = sum(job.share for job in running)
        trained = done - self.there + partly
        text = f"{failed} failed  " if failed else ""
        if trained:
            left = (time.monotonic() - self.since) / trained * (self.total - done - partly)
            text += f"{datetime.timedelta(seconds=round(left))} left"
        self.bar.update(self.all, completed=done + partly, description=f"{done}/{self.total} runs", text=text)
        self.bar.refresh()


def _result(folder: Path) -> str:
    at = RunFolder(folder)
    final, seconds = at.read_json("metrics.json")["final"], at.read_json("environment.json")["seconds"]
    scores = (f"{name} {'–' if final[name] is None else format(100 * final[name], '.1f')}" for name in CURVES)
    return f"{'  '.join(scores)}  {seconds:.0f} s"
