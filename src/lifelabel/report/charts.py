"""Functions that the figures of runs and of streams share."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lifelabel.utils.files import atomic_write
from lifelabel.utils.text import printable

__all__ = ["chart_text", "new_figure", "save_figure"]


def chart_text(text: object, width: int, wrap: int | None = None) -> str:
    r"""Untrusted text for a chart: at most `width` characters, in lines of at most `wrap` characters.

    A `$` is escaped: matplotlib would read the text between two of them as a formula.

    >>> print(chart_text("$5_to_$10", 8))
    \$5_to_\$…
    """
    short = printable(text)
    if len(short) > width:
        short = short[: width - 1] + "…"
    if wrap:
        short = textwrap.fill(short, wrap)
    return short.replace("$", r"\$")


def new_figure(
    width: float, height: float, columns: int = 1, width_ratios: Sequence[float] | None = None
) -> tuple[Any, Any]:
    """A matplotlib figure of the given size in inches, and an array of its axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, columns, figsize=(width, height), layout="constrained", squeeze=False, width_ratios=width_ratios
    )
    return figure, axes[0]


def save_figure(figure: Any, path: Path) -> None:
    """Save a figure as PNG and close it."""
    from matplotlib import pyplot as plt

    try:
        with warnings.catch_warnings(), atomic_write(path) as file:
            warnings.filterwarnings("ignore", "Glyph")  # a character that the font lacks is drawn as a box
            figure.savefig(file, dpi=110, format="png")
    finally:
        plt.close(figure)
