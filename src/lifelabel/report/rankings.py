"""Published rankings of methods, and whether measured runs agree with them.

A source states that one method is above another. Figures are in here only if the source was read. All are in %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from lifelabel.report.paper_claims import TABLE_1
from lifelabel.report.text_tables import Stat

HOLDS, LEVEL, DOES_NOT_HOLD, NO_VERDICT = "holds", "level", "does not hold", "no verdict"
_FACTOR = 2
RULE = (
    f"A ranking holds if the mean mAP of the upper method is more than {_FACTOR} standard errors above that of the "
    f"lower one. It does not hold if it is more than {_FACTOR} standard errors below it, and is level otherwise. The "
    "standard error of the difference is √(s₁²/n₁ + s₂²/n₂), with the standard deviations s over n seeds. With one "
    "seed there is no verdict."
)


@dataclass(frozen=True)
class Source:
    """A publication: its rankings as pairs (upper method, lower method), and its figures by protocol and method."""

    name: str
    setting: str
    """What was measured, and how."""
    claims: tuple[tuple[str, str], ...]
    figures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def published(self, upper: str, lower: str) -> str:
        """The figures of two methods as text.

        >>> SOURCES[0].published("agcn", "prs")
        '34.11 / 28.81 (Split-COCO), 41.12 / 37.93 (Split-WIDE)'
        """
        known = {name: found for name, found in self.figures.items() if upper in found and lower in found}
        return ", ".join(f"{found[upper]} / {found[lower]} ({name})" for name, found in known.items()) or "no figures"


SOURCES = (
    Source(
        "AGCN: Du et al., ICME 2022, Table 1",
        "mAP after the last task, one pass, ResNet-101 at 448 pixels, complete published splits",
        (
            ("agcn", "prs"), ("prs", "er"), ("er", "agem"), ("agem", "lwf"), ("lwf", "ewc"), ("ewc", "fine-tuning"),
            ("agcn", "er"), ("agcn", "lwf"), ("agcn", "fine-tuning"),
        ),
        {
            split: {name: f"{row[0]:.2f}" for name, row in rows.items() if name != "multi-task"}
            for split, rows in TABLE_1.items()
        },
    ),
    Source(
        "L3A: Zhang et al., ICML 2025",
        "mAP on EMOTIC, one backbone for all methods",
        (
            ("l3a", "lwf"), ("lwf", "krt"), ("krt", "prs"), ("prs", "er"), ("er", "agcn"), ("l3a", "krt"),
            ("l3a", "agcn"),
        ),
        {"EMOTIC": {"l3a": "28.8", "lwf": "23.3", "krt": "22.2", "prs": "20.6", "er": "20.3", "agcn": "17.9"}},
    ),
    Source(
        "CSC: Du et al., ECCV 2024, and KRT: Dong et al., ICCV 2023",
        "mAP after the last task of COCO B0-C10, no stored images, many passes, each paper with its own training",
        (("csc", "krt"),),
        {"COCO B0-C10": {"csc": "72.8", "krt": "65.9"}},
    ),
    Source(
        "ML-GCN: Chen et al., CVPR 2019, the table in the authors' repository",
        "mAP of joint training on all classes, ResNet-101 at 448 pixels, maximum pooling for both; multi-task stands "
        "for the network without a graph",
        (("ml-gcn", "multi-task"),),
        {
            "COCO": {"ml-gcn": "83.0", "multi-task": "81.9"}, "NUS-WIDE": {"ml-gcn": "62.5", "multi-task": "59.7"},
            "VOC 2007": {"ml-gcn": "94.0", "multi-task": "93.0"},
        },
    ),
    Source(
        "RM: Bang et al., CVPR 2021, the table in the authors' repository",
        "accuracy after the last task with a single label per image, blurry tasks, one pass over new images and many "
        "over stored ones",
        (("rm", "ewc"), ("rm", "icarl"), ("ewc", "icarl")),
        {
            "CIFAR-100": {"rm": "41.35", "ewc": "26.95", "icarl": "17.39"},
            "ImageNet": {"rm": "50.11", "ewc": "39.54", "icarl": "17.52"},
        },
    ),
    Source(
        "OCDM: Liang and Li, 2022, abstract",
        "more accurate than earlier methods on two multi-label streams; the first version names PRS",
        (("ocdm", "prs"),),
    ),
    Source(
        "DER++: Buzzega et al., NeurIPS 2020, abstract",
        "above established methods, with a single label per image; ER stands for them",
        (("der++", "er"),),
    ),
    Source(
        "RebLL: Du et al., AAAI 2025, abstract",
        "above the state of the art on VOC and COCO; CSC and KRT stand for it",
        (("rebll", "csc"), ("rebll", "krt")),
    ),
    Source(
        "AGCN++: Du et al., 2022 (arXiv:2211.14763), abstract",
        "extends AGCN by class representations of each image, for a better matrix and less forgetting",
        (("agcn++", "agcn"),),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """The difference of two mean mAPs in points, and its standard error. None: one of them has one seed only."""

    points: float
    error: float | None

    @property
    def verdict(self) -> str:
        if self.error is None:
            return NO_VERDICT
        limit = _FACTOR * self.error
        return HOLDS if self.points > limit else DOES_NOT_HOLD if self.points < -limit else LEVEL

    def __str__(self) -> str:
        return f"{self.points:+.2f}" + (", one seed" if self.error is None else f" ± {self.error:.2f}")


def difference(upper: Stat, lower: Stat) -> Difference | None:
    """The difference of two rows; None if one of them has no run.

    >>> difference(Stat(52.0, 3.0, 3), Stat(50.0, 4.0, 4)).verdict
    'level'
    """
    if upper.mean is None or lower.mean is None:
        return None
    error = None
    if upper.sd is not None and lower.sd is not None:
        error = math.sqrt(upper.sd**2 / upper.n + lower.sd**2 / lower.n)
    return Difference(upper.mean - lower.mean, error)
