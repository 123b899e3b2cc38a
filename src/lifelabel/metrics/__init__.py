"""Multi-label metrics as pure functions of scores and labels. The name of each metric states its convention."""

import importlib
from typing import TYPE_CHECKING, Any

from lifelabel.metrics.over_tasks import forgetting, relative_forgetting

if TYPE_CHECKING:
    from lifelabel.metrics.functions import (
        METRICS,
        Counts,
        Metric,
        Scored,
        all_metrics,
        average_precision,
        counts,
        headline,
        mean_average_precision,
        mean_f1,
        precision_recall_f1,
    )

__all__ = [
    "METRICS", "Counts", "Metric", "Scored", "all_metrics", "average_precision", "counts", "forgetting", "headline",
    "mean_average_precision", "mean_f1", "precision_recall_f1", "relative_forgetting",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the functions on first use: the records of runs use parts of this package without torch."""
    if name not in __all__:
        raise AttributeError(f"module 'lifelabel.metrics' has no attribute '{name}'")
    return getattr(importlib.import_module("lifelabel.metrics.functions"), name)
