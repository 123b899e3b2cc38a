"""The scheduler: many runs at the same time, in processes of this machine or as jobs of a cluster.

Finished runs are recognised by their files and are not repeated. Stopped runs continue from their checkpoint. A run
that fails is reported with its reason, and the others continue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lifelabel.errors import Stopped
from lifelabel.search.local_runs import LocalRuns
from lifelabel.search.planned_run import ActiveRun, Backend, Outcome, PlannedRun, Waiting, clear_runs, existing_outcome
from lifelabel.utils.processes import catch_stop_signals


class Display:
    """Callbacks of the scheduler. This class does nothing."""

    def begin(self, outcomes: Sequence[Outcome | None]) -> None:
        """The scheduler starts. None is a run that is not trained yet."""

    def started(self, run: ActiveRun) -> None:
        """A run is active now."""

    def update(self, running: Sequence[ActiveRun]) -> None:
        """The active runs may have new messages. This is called at least once per second."""

    def queue(self, waiting: int, running: int) -> None:
        """On a cluster: the number of jobs that wait, and of those that run."""

    def note(self, line: str) -> None:
        """A line of information for the user."""

    def removed(self, run: ActiveRun) -> None:
        """A run is no longer active."""

    def ended(self, outcome: Outcome) -> None:
        """A run is finished or has failed. This is not called for a run that was stopped."""

    def end(self) -> None:
        """The scheduler ends."""


def run_all(
    planned: Sequence[PlannedRun], jobs: int = 1, *, overwrite: bool = False, display: Display | None = None,
    command: str = "", backend: Backend | None = None,
) -> list[Outcome]:  # fmt: skip
    """Train the runs that are missing, `jobs` at a time. Returns one outcome per run, in the given order.

    `backend` trains them elsewhere, with its own limit of runs at a time. On this machine a `UserError` in the set-up
    of the first new run is a mistake in the options of all runs, and is raised. On Ctrl-C and SIGTERM every run writes
    a checkpoint, and `Stopped` is raised with `command`, the command that continues.
    """
    scheduler = _Scheduler(planned, overwrite, display or Display(), backend or LocalRuns(jobs))
    hint = f"; continue with: {command}" if command else ""
    with catch_stop_signals(scheduler.request_stop):
        try:
            scheduler.begin()
            scheduler.work()
        except KeyboardInterrupt:
            scheduler.backend.stop_at_once()
            raise Stopped(f"stopped at once{scheduler.backend.at_once}{hint}") from None
        finally:
            scheduler.end()
    if None in scheduler.outcomes:
        raise Stopped(f"stopped{hint}")
    return [outcome for outcome in scheduler.outcomes if outcome]


class _Scheduler:
    """Starts the runs, waits for them, and collects their outcomes."""

    def __init__(self, planned: Sequence[PlannedRun], overwrite: bool, display: Display, backend: Backend):
        self.planned, self.overwrite, self.display, self.backend = planned, overwrite, display, backend
        self.outcomes: list[Outcome | None] = [None] * len(planned)
        self.waiting: Waiting = deque()
        self.displayed: set[int] = set()
        """The numbers of the active runs that the display shows."""
        self.stop_requested = self.display_begun = False

    def begin(self) -> None:
        """Find the runs that are finished, and start others."""
        missing = list(enumerate(self.planned)) if self.overwrite else self.find_missing()
        if not missing:
            self.begin_display()
            return
        with self.backend.claim(missing, self.overwrite) as refused:
            if self.overwrite:  # all of them now: if the scheduler is stopped, the next call trains those that are left
                clear_runs(self.planned)
            for number, outcome in refused.items():
                self.outcomes[number] = outcome
            self.waiting.extend(self.find_missing())  # again: an earlier call may have finished a run meanwhile
            self.begin_display()
            self.start()

    def find_missing(self) -> list[tuple[int, PlannedRun]]:
        """The runs without an outcome that are not active."""
        active = {run.number for run in self.backend.active}
        for number, plan in enumerate(self.planned):
            if self.outcomes[number] is None and number not in active:
                self.outcomes[number] = existing_outcome(plan)
        return [(n, p) for n, p in enumerate(self.planned) if self.outcomes[n] is None and n not in active]

    def begin_display(self) -> None:
        self.display.begin(self.outcomes)
        self.display_begun = True

    def work(self) -> None:
        """The loop until all runs have ended, or those that were active after a stop."""
        while self.backend.active or (self.waiting and not self.stop_requested):
            self.start()
            self.backend.wait()
            for run in list(self.backend.active):
                ended = run.poll()
                self.show(run, run.is_running)
                if ended:
                    self.finish(run)
            if self.stop_requested:
                self.backend.stop()
            running = [run for run in self.backend.active if run.is_running]
            if self.backend.has_queue:
                self.display.queue(len(self.backend.active) - len(running), len(running))
            self.display.update(running)

    def start(self) -> None:
        if not self.stop_requested:
            self.backend.start(self.waiting, self.display.note)
        for run in self.backend.active:
            self.show(run, run.is_running)

    def show(self, run: ActiveRun, running: bool) -> None:
        if running and run.number not in self.displayed:
            self.displayed.add(run.number)
            self.display.started(run)
        elif run.number in self.displayed and not running:
            self.displayed.remove(run.number)
            self.display.removed(run)

    def finish(self, run: ActiveRun) -> None:
        self.show(run, False)
        self.backend.finish(run, more=bool(self.waiting) and not self.stop_requested)
        outcome = run.outcome()
        if not (outcome.error and self.stop_requested):  # a run that was stopped has no outcome
            self.outcomes[run.number] = outcome
            self.display.ended(outcome)

    def request_stop(self) -> None:
        """The first Ctrl-C or SIGTERM: every run writes a checkpoint. The second one: stop at once."""
        if self.stop_requested:
            raise KeyboardInterrupt
        self.stop_requested = True

    def end(self) -> None:
        self.backend.close()
        if self.display_begun:
            self.display.end()
