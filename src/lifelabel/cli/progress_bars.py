"""Progress in the terminal: of one run, and of many runs."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

from lifelabel.cli.console import print_line
from lifelabel.cli.stopping import begin_stop, end_watch, watch_signals
from lifelabel.config.config import Config
from lifelabel.engine.callback import Callback
from lifelabel.metrics.over_tasks import HEADLINE
from lifelabel.report.tables import one_line
from lifelabel.runs.finished import read_run
from lifelabel.search.planned_run import ActiveRun, Outcome
from lifelabel.search.scheduler import Display
from lifelabel.streams import Task
from lifelabel.streams.stream import task_names
from lifelabel.utils.text import counted, printable, task_text


class _Speed(ProgressColumn):
    def render(self, task: progress.Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} img/s" if speed else "– img/s", no_wrap=True)


class Quiet(Callback):
    """Nothing but a line when the run is stopped."""

    def before_step(self) -> None:
        watch_signals()

    def stopping(self) -> None:
        begin_stop()

    def end(self) -> None:
        end_watch()


class ProgressBar(Quiet):
    """A progress bar of one run, and one line per finished task. Without a terminal, only the lines are printed.

    A narrow terminal has no class names, and a very narrow one has no bar.
    """

    def __init__(self, console: Console):
        self.console = console
        columns = [TextColumn("{task.description}", markup=False), MofNCompleteColumn(), _Speed()]
        columns += [TimeRemainingColumn(), TextColumn("{task.fields[losses]}", markup=False)]
        if console.width >= 100:
            columns.insert(1, BarColumn(bar_width=20))
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_interactive)

    def begin(self, config: Config, tasks: Sequence[Task], images: int, task: int, learned: int) -> None:
        self.method, self.tasks = config.method, tasks
        if self.names:
            print_line(f"{self.method}: tasks in this order: {', '.join(self.names)}", None, self.console)
        if learned:
            where = task_text(task + 1, self.names, of=len(tasks))
            line = f"{self.method}: resumed after {counted(learned, 'images')}, in {where}"
            print_line(line, None, self.console)
        self.id = self.bar.add_task(self._describe(task), total=images, completed=learned, losses="")
        self.bar.start()

    @property
    def names(self) -> list[str]:
        return task_names(self.tasks)

    def _describe(self, task: int) -> str:
        names = self.tasks[task].classes
        listed = f" ({', '.join(names[:4])}{' …' if len(names) > 4 else ''})" if self.console.width >= 130 else ""
        return printable(f"{self.method} {task_text(task + 1, self.names, of=len(self.tasks))}{listed}")

    def steps(self, task: int, images: int, losses: dict[str, float]) -> None:
        text = " ".join(f"{name} {value:.2g}" for name, value in losses.items())
        self.bar.update(self.id, advance=images, description=self._describe(task), losses=printable(text))

    def evaluated(self, record: dict[str, Any]) -> None:
        seen = record["seen"]
        scores = "  ".join(f"{n} {'–' if seen[n] is None else format(100 * seen[n], '5.1f')}" for n in HEADLINE)
        print_line(f"{self.method}: after {task_text(record['task'], self.names)}  {scores}", None, self.console)

    def note(self, line: str) -> None:
        print_line(line, "yellow", self.console)

    def end(self) -> None:
        super().end()
        self.bar.stop()


class RunsDisplay(Display):
    """A progress bar of all runs, and one of each active run. Without a terminal, only lines are printed."""

    def __init__(self, console: Console):
        self.console = console
        self.notes: set[str] = set()
        self.jobs = ""

    def begin(self, outcomes: Sequence[Outcome | None]) -> None:
        self.outcomes = [outcome for outcome in outcomes if outcome]
        self.total, self.done_before = len(outcomes), len(self.outcomes)
        self.since = time.monotonic()
        name, text = (TextColumn(f"{{task.{what}}}", markup=False) for what in ("description", "fields[text]"))
        # no refresh thread: if a run is forked while that thread holds a lock, the lock is never released in the run
        self.bar = Progress(
            name, BarColumn(20), text, console=self.console, transient=True, auto_refresh=False, redirect_stdout=False,
            redirect_stderr=False, disable=not self.console.is_interactive,
        )  # fmt: skip
        self.all = self.bar.add_task("", total=self.total, text="")
        self.lines: dict[int, TaskID] = {}
        finished = sum(not outcome.error for outcome in self.outcomes)
        if finished:
            self._print(f"{finished} of {self.total} runs are finished already")
        for outcome in self.outcomes:
            if outcome.error:
                self._print(f"{outcome.planned.name}: {outcome.error}", "red")
        self.bar.start()

    def end(self) -> None:
        self.bar.stop()

    def _print(self, line: str, style: str | None = None) -> None:
        print_line(line, style, self.console)

    def note(self, line: str) -> None:
        self._print(line)

    def queue(self, waiting: int, running: int) -> None:
        self.jobs = f"jobs: {waiting} waiting, {running} running  "

    def started(self, run: ActiveRun) -> None:
        self.lines[run.number] = self.bar.add_task(printable(run.plan.name), total=1, text="")

    def removed(self, run: ActiveRun) -> None:
        self._print_notes(run)
        self.bar.remove_task(self.lines.pop(run.number))

    def ended(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        name = outcome.planned.name
        if outcome.error:
            self._print(f"{name}: {outcome.error}", "red")
        else:
            self._print(f"{name}: {_result(outcome.planned.folder)}")

    def _print_notes(self, run: ActiveRun) -> None:
        """Print the new notes of a run. A note that several runs have is printed once."""
        for line in run.notes:
            if line not in self.notes:
                self._print(line, "yellow")
        self.notes.update(run.notes)
        run.notes.clear()

    def update(self, running: Sequence[ActiveRun]) -> None:
        for run in running:
            self._print_notes(run)
            self.bar.update(self.lines[run.number], completed=run.fraction, text=run.describe())
        done, failed = len(self.outcomes), sum(bool(outcome.error) for outcome in self.outcomes)
        in_progress = sum(run.fraction for run in running)
        trained = done - self.done_before + in_progress
        text = self.jobs + (f"{failed} failed  " if failed else "")
        if trained:
            left = (time.monotonic() - self.since) / trained * (self.total - done - in_progress)
            text += f"{datetime.timedelta(seconds=round(left))} left"
        self.bar.update(self.all, completed=done + in_progress, description=f"{done}/{self.total} runs", text=text)
        self.bar.refresh()


def _result(folder: Path) -> str:
    run = read_run(folder)
    return f"{one_line(run)}  {run.environment['seconds']:.0f} s"
