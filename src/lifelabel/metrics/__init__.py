"""Multi-label metrics as pure functions of scores and labels. The name of each metric states its convention."""

from lifelabel.metrics.functions import (
    METRICS,
    Counts,
    Metric,
    Scored,
    all_metrics,
    average_precision,
    counts,
    forgetting,
    headline,
    mean_average_precision,
    mean_f1,
    precision_recall_f1,
    relative_forgetting,
)

__all__ = [
    "METRICS", "Counts", "Metric", "Scored", "all_metrics", "average_precision", "counts", "forgetting", "headline",
    "mean_average_precision", "mean_f1", "precision_recall_f1", "relative_forgetting",
]  # fmt: skip
