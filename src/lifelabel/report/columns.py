"""Columns of the tables of runs, and the statistics in their cells."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Column", "Stat"]


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation of n values; None if there are too few."""

    mean: float | None
    sd: float | None
    n: int

    @staticmethod
    def from_values(values: Sequence[float | None]) -> Stat:
        known = [value for value in values if value is not None and math.isfinite(value)]
        mean = statistics.mean(known) if known else None
        return Stat(mean, statistics.stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True)
class Column:
    """One figure of a run: its name in files, its head in tables, and its format."""

    key: str
    head: str
    digits: int = 2
    unit: float = 1
    with_sd: bool = True
    short_head: str = ""
    """Its head in the terminal."""

    def text(self, stat: Stat, compact: bool = False) -> str:
        if stat.mean is None:
            return "–"
        digits = max(self.digits - 1, 1) if compact and self.digits > 1 else self.digits
        mean = f"{stat.mean / self.unit:,.{digits}f}"
        if stat.sd is None or not self.with_sd:
            return mean
        return f"{mean}{'±' if compact else ' ± '}{stat.sd / self.unit:.{digits}f}"
