"""The studies of `lifelabel study`: comparisons of variants of one method. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Study:
    """A comparison of variants of one method.

    `head` has the heads of the first columns. A row has the cells of these columns, and options of the method or of the
    run.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], dict[str, Any]], ...]
    method: str = "agcn"
    forgetting: bool = True
    """Whether the table has rows of forgetting."""
    errors: bool = False
    """Whether a second table has the error of the correlation matrix."""
    costs: bool = False
    """Whether the table has what a method stores and how long it takes."""


STUDIES = {
    "acm": Study(
        "Blocks of the matrix (the paper's Table 2), the graph switched off, and the refinement of scores",
        ("matrix", "A^{t-1} & B^t", "R^t & Q^t"),
        (
            (("A = I", "×", "×"), {"adjacency": "identity"}),
            (("A^{t-1} & B^t", "√", "×"), {"blocks": "intra", "context": 0.0}),
            (("+ R^t & Q^t", "√", "√"), {"blocks": "all", "context": 0.0}),
            (("+ relations in a task", "√", "√"), {"blocks": "all", "context": 0.2, "relations": "intra"}),
            (("+ relations of all tasks", "√", "√"), {"blocks": "all", "context": 0.2, "relations": "all"}),
        ),
        forgetting=False,
        errors=True,
    ),
    "lambdas": Study(
        "Weights of the losses (the paper's Table 3)",
        ("λ1", "λ2", "λ3"),
        (
            (("0.05", "0.95", "0"), {"lambdas": (0.05, 0.95, 0)}),
            (("0.07", "0.93", "0"), {"lambdas": (0.07, 0.93, 0)}),
            (("0.09", "0.91", "0"), {"lambdas": (0.09, 0.91, 0)}),
            (("0.07", "0.93", "10^4"), {"lambdas": (0.07, 0.93, 1e4)}),
            (("0.07", "0.93", "10^5"), {"lambdas": (0.07, 0.93, 1e5)}),
            (("0.07", "0.93", "10^6"), {"lambdas": (0.07, 0.93, 1e6)}),
        ),
    ),
    "weighted-ridge": Study(
        "Parts of weighted-ridge: each row changes one option",
        ("option", "value"),
        (
            (("defaults", ""), {}),
            (("features", "map"), {"features": ("map",)}),
            (("features", "map, stages"), {"features": ("map", "stages")}),
            (("features", "map, head"), {"features": ("map", "head")}),
            *((("alpha", f"{alpha:g}"), {"alpha": alpha}) for alpha in (1.0, 0.5, 0.3, 0.2, 0.1)),
            *((("image_size", str(size)), {"image_size": size}) for size in (224, 288, 352, 416)),
            (("views", "1"), {"views": 1}),
            *((("directions", str(count or "all")), {"directions": count}) for count in (512, 1024, 2048, None)),
            (("storage", "float32"), {"storage": "float32"}),
            (("context", "0"), {"context": 0.0}),
        ),
        method="weighted-ridge",
        forgetting=False,
        errors=True,
        costs=True,
    ),
}
