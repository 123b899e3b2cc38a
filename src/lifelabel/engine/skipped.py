"""The images of a run that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lifelabel.engine.setup import Run
from lifelabel.errors import UserError
from lifelabel.runs import names
from lifelabel.runs.lines import JsonLines


class SkippedImages:
    """Lists them in skipped.jsonl, each once, and ends the run if they are more than `max_skipped` allows."""

    def __init__(self, run: Run, lines: JsonLines):
        self.run, self.lines = run, lines

    def list_missing(self) -> None:
        for split, source in (("train", self.run.info.train), ("test", self.run.info.test)):
            for row in np.flatnonzero(~source.present).tolist():
                self.lines.write({"split": split, "image": source.name(row), "reason": "no such file"})

    def add(self, split: str, row: int, reason: str) -> None:
        """Record an image, or end the run with --strict."""
        run, p = self.run, self.run.progress
        source, known = (run.info.train, p.bad_train) if split == "train" else (run.info.test, p.bad_test)
        if run.config.strict:
            raise UserError(
                f"{split} image {source.name(row)}: {reason}; repair it, or leave out --strict to skip it (to resume: "
                f"strict: false in {run.folder / names.CONFIG}, then --resume)"
            )
        if row in known:  # recorded in an earlier task or evaluation
            return
        if not p.bad_train and not p.bad_test:
            run.callback.note(f"{source.name(row)}: {reason}; such images are skipped and listed in {names.SKIPPED}")
        known.add(row)
        self.lines.write({"split": split, "image": source.name(row), "reason": reason})
        count, images = len(p.bad_test), len(run.info.test_rows)
        if split == "test" and count / images > run.config.max_skipped:
            raise self._too_many(f"{count:,} of {images:,} test images")

    def exceed(self, bad: Sequence[tuple[int, str]], images: int) -> bool:
        """Whether a batch with the `bad` images is not learned: too many of the `images` of its task are skipped."""
        config = self.run.config
        return (self.run.progress.skipped + len(bad)) / images > config.max_skipped and not config.strict

    def refuse(self, bad: Sequence[tuple[int, str]], images: int) -> UserError:
        """The error for a batch that is not learned.

        Its images are read again when the run resumes: their lines come after those of the checkpoint.
        """
        for row, reason in bad:
            self.add("train", row, reason)
        return self._too_many(f"{self.run.progress.skipped + len(bad):,} of {images:,} training images")

    def _too_many(self, what: str) -> UserError:
        run = self.run
        return UserError(
            f"{run.tasks[run.progress.task].text}: {what} cannot be read, more than max_skipped "
            f"{run.config.max_skipped:g} allows: {run.folder / names.SKIPPED} lists them; restore them, or raise "
            f"max_skipped in {run.folder / names.CONFIG}, and resume with: {run.stopping.resume_command}"
        )
