"""What the AGCN paper prints: the figures of its tables, and its claims about them and about its pictures.

Whether the figures are final scores (the text of the paper) or means over test sets (the code of its authors) is not
known. All are in %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TARGETS = {
    "table1": "Table 1: all systems",
    "table2": "Table 2: blocks of the matrix",
    "table3": "Table 3: weights of the losses",
    "fig3": "Fig. 3: mAP after each task",
    "fig4": "Fig. 4: the matrix after the last task",
    "a6": "A.6: the matrix after each task",
}
REGIMES = {"authors": "release", "paper": "paper", "ours": "tuned"}
"""The fidelity of each regime in which the paper is reproduced."""
NEGATIVE = "negative"
"""After the name of a row: its method trains hidden labels as 0, as the code of PRS."""
KEYS = ("mAP", "CF1", "OF1", "forgetting_mAP", "forgetting_CF1", "forgetting_OF1")
"""The names of the figures of a row. Multi-task and Table 2 have no forgetting."""

_Figures = tuple[float, ...]

TABLE_1: Mapping[str, Mapping[str, _Figures]] = {
    "Split-COCO": {
        "multi-task": (65.85, 61.79, 66.27),
        "fine-tuning": (9.83, 10.54, 28.83, 58.04, 63.54, 20.60),
        "ewc": (12.20, 12.50, 29.67, 45.61, 55.44, 19.85),
        "lwf": (19.95, 21.69, 40.68, 41.16, 39.85, 11.43),
        "agem": (23.31, 27.25, 37.94, 34.52, 18.92, 12.94),
        "er": (25.03, 30.54, 38.38, 33.46, 17.28, 12.34),
        "prs": (28.81, 18.40, 13.86, 30.90, 54.36, 52.51),
        "agcn": (34.11, 35.49, 42.37, 23.71, 14.79, 8.16),
    },
    "Split-WIDE": {
        "multi-task": (66.17, 61.45, 71.57),
        "fine-tuning": (20.33, 19.10, 35.72, 40.85, 31.20, 15.10),
        "ewc": (22.03, 22.78, 35.70, 34.86, 28.18, 15.17),
        "lwf": (29.46, 29.64, 42.69, 20.26, 18.99, 5.73),
        "agem": (32.47, 33.28, 38.93, 16.42, 15.71, 9.73),
        "er": (34.03, 34.94, 39.37, 15.15, 11.80, 8.61),
        "prs": (37.93, 21.12, 15.64, 13.59, 51.09, 62.90),
        "agcn": (41.12, 38.27, 43.27, 11.22, 5.43, 4.28),
    },
}
TABLE_2: Mapping[str, Mapping[str, _Figures]] = {
    "Split-COCO": {"A^{t-1} & B^t": (31.52, 30.37, 34.87), "+ R^t & Q^t": (34.11, 35.49, 42.37)}
}
TABLE_3: Mapping[str, Mapping[str, _Figures]] = {
    "Split-COCO": {
        "0.05 / 0.95 / 0": (29.90, 31.80, 37.12, 29.24, 24.88, 19.67),
        "0.07 / 0.93 / 0": (30.99, 32.03, 39.31, 28.28, 22.55, 13.88),
        "0.09 / 0.91 / 0": (29.71, 32.71, 38.91, 29.97, 21.79, 16.49),
        "0.07 / 0.93 / 10^4": (33.05, 33.31, 41.04, 26.41, 20.99, 11.38),
        "0.07 / 0.93 / 10^5": (34.11, 35.49, 42.37, 23.71, 14.79, 8.16),
        "0.07 / 0.93 / 10^6": (33.71, 33.05, 42.62, 25.69, 21.30, 7.89),
    }
}


@dataclass(frozen=True)
class Claim:
    """A statement of the paper: the figure `key` of every row of `upper` is above that of every row of `lower`."""

    text: str
    upper: tuple[str, ...]
    lower: tuple[str, ...]
    key: str = "mAP"


_OTHERS = ("fine-tuning", "ewc", "lwf", "agem", "er", "prs")
_PAIRS = (("ewc", "fine-tuning"), ("lwf", "ewc"), ("agem", "lwf"), ("er", "agem"), ("prs", "er"))
_FORGETTING = {"forgetting_mAP": "mAP", "forgetting_CF1": "CF1", "forgetting_OF1": "OF1"}
_STRONG = ("0.07 / 0.93 / 10^4", "0.07 / 0.93 / 10^5", "0.07 / 0.93 / 10^6")
_WEAK = ("0.05 / 0.95 / 0", "0.07 / 0.93 / 0", "0.09 / 0.91 / 0")

CLAIMS: Mapping[str, tuple[Claim, ...]] = {
    "table1": (
        Claim("multi-task is an upper bound", ("multi-task",), (*_OTHERS, "agcn")),
        Claim("fine-tuning is the lowest", (*_OTHERS[1:], "agcn"), ("fine-tuning",)),
        *(Claim(f"{upper} is above {lower}", (upper,), (lower,)) for upper, lower in _PAIRS),
        *(Claim(f"agcn has the highest {key}", ("agcn",), _OTHERS, key) for key in KEYS[:3]),
        *(Claim(f"agcn has the least forgetting of {m}", _OTHERS, ("agcn",), key) for key, m in _FORGETTING.items()),
        *(Claim(f"prs has a lower {key} than er", ("er",), ("prs",), key) for key in KEYS[1:3]),
    ),
    "table2": (
        *(Claim(f"R and Q raise {key}", ("+ R^t & Q^t",), ("A^{t-1} & B^t",), key) for key in KEYS[:3]),
        Claim("without R and Q, agcn is above prs", ("A^{t-1} & B^t",), ("prs",)),
    ),
    "table3": (
        Claim("without the relationship loss, λ1 = 0.07 is the best", (_WEAK[1],), (_WEAK[0], _WEAK[2])),
        Claim("the relationship loss raises mAP", _STRONG, (_WEAK[1],)),
        *(Claim(f"λ3 = 10^5 has the highest {key}", (_STRONG[1],), (*_WEAK, _STRONG[0], _STRONG[2]), key)
          for key in KEYS[:2]),
        Claim("λ3 = 10^6 has the highest OF1", (_STRONG[2],), (*_WEAK, *_STRONG[:2]), "OF1"),
        Claim("λ3 = 10^5 has the least forgetting of mAP", (*_WEAK, _STRONG[0], _STRONG[2]), (_STRONG[1],),
              "forgetting_mAP"),
    ),
}  # fmt: skip
"""The claims about the rows of each table, by their names."""

PAIRS = (("sky", "clouds"), ("sky", "sunset"), ("sky", "lake"), ("person", "beach"), ("person", "flowers"))
"""Classes of Split-WIDE that are closely related by the text of Fig. 4 and A.6."""


def figures_of(table: Mapping[str, Mapping[str, _Figures]], split: str, row: str) -> dict[str, float]:
    """The published figures of a row by name; empty if the paper has no such row.

    >>> figures_of(TABLE_1, "Split-COCO", "multi-task")
    {'mAP': 65.85, 'CF1': 61.79, 'OF1': 66.27}
    """
    return dict(zip(KEYS, table.get(split, {}).get(row, ()), strict=False))
