"""The provenance of pretrained weights, and the check that they were not trained on the classes of the stream."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lifelabel.errors import UserError
from lifelabel.streams.class_names import COCO_CLASSES, NUS_WIDE_CLASSES, VOC_CLASSES

_DATASETS = {"COCO": COCO_CLASSES, "VOC": VOC_CLASSES, "NUS-WIDE": NUS_WIDE_CLASSES}
"""Data sets whose classes a stream may have."""
_SYNONYMS = {
    "aeroplane": "airplane", "plane": "airplane", "motorbike": "motorcycle", "sofa": "couch", "tvmonitor": "tv",
    "television": "tv", "people": "person", "birds": "bird", "boats": "boat", "cars": "car", "horses": "horse",
}  # fmt: skip
_PATTERNS = {
    "COCO": "(?:ms)?coco",
    "VOC": "(?:pascal)?voc",
    "NUS-WIDE": "nus[-_ ]?wide",
    "ImageNet-1k": r"in1k|ilsvrc|imagenet(?![-_ ]?(?:12|21|22)k)",
    "ImageNet-12k": "(?:in|imagenet[-_ ]?)12k",
    "ImageNet-21k": "(?:in|imagenet[-_ ]?)2[12]k",
    "LAION": "laiona?",
    "OpenAI CLIP": "openai",
    "DFN": r"dfn\d*b?",
    "DataComp": "datacomp(?:xl|dr|1b)?",
    "WebLI": r"webli|siglip\d?",
    "MetaCLIP": r"metaclip\d?",
    "LVD-142M": "lvd[-_]?142m|dinov2",
    "LVD-1689M": "lvd[-_]?1689m",
    "Instagram": r"ig\d+[bm]|swag",
}
"""Regular expressions for the names of data sets in the names of files and of published weights."""


@dataclass(frozen=True)
class Provenance:
    """The training data and the source of the initial weights of a backbone.

    `sha256` is that of the file. It is None if no file was read.
    """

    trained_on: str
    source: str
    sha256: str | None = None
    url: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        return dataclasses.asdict(self)


SCRATCH = Provenance("nothing", "random initialisation")


def combined(provenances: Sequence[Provenance]) -> Provenance:
    """The provenance of several networks together."""
    trained_on = dict.fromkeys(name for each in provenances for name in each.trained_on.split(" + "))
    return Provenance(
        " + ".join(trained_on),
        " + ".join(dict.fromkeys(each.source for each in provenances)),
        "+".join(each.sha256 for each in provenances if each.sha256) or None,
        " + ".join(each.url for each in provenances if each.url) or None,
    )


def recognise(text: str) -> tuple[str, ...]:
    """The data sets that a file name, a tag or a sentence names.

    >>> recognise("deeplabv3_resnet101_coco-586e9e4e.pth"), recognise("convnext_base.fb_in22k_ft_in1k")
    (('COCO',), ('ImageNet-1k', 'ImageNet-21k'))
    >>> recognise("coconut_vocabulary.pth")
    ()
    """
    text = text.lower()
    return tuple(name for name, pattern in _PATTERNS.items() if re.search(f"(?<![a-z])(?:{pattern})(?![a-z])", text))


def check(provenance: Provenance, classes: Sequence[str], dataset: str, allow: bool) -> str | None:
    """Refuse weights that were trained on the data set or the classes of the stream. Returns a note, or None.

    With `allow` the weights are accepted, with a note. Weights trained on ImageNet are accepted without a note, because
    most publications use them.
    """
    for name in recognise(provenance.trained_on):
        known = {_normalized(label) for label in _DATASETS.get(name, ())}
        shared = [label for label in classes if _normalized(label) in known]
        if not shared and dataset != name.lower():
            continue
        listed = ", ".join(shared[:5]) + (f", … {len(shared)} in all" if len(shared) > 5 else "")
        overlap = f"classes of this stream ({listed})" if shared else "the images of this stream"
        found = f"the weights ({provenance.source}) were trained on {name}, which has {overlap}"
        if allow:
            return f"{found}: allowed by --allow-seen-weights"
        raise UserError(f"{found}: use other weights, or allow these with --allow-seen-weights")
    if "unknown" in provenance.trained_on.split(" + "):
        return f"the training data of the weights ({provenance.source}) is unknown: it may have these classes"
    return None


def _normalized(label: str) -> str:
    """A label without case, spaces and punctuation, and with one spelling for synonyms."""
    letters = re.sub(r"[\W_]", "", label.lower())
    return _SYNONYMS.get(letters, letters)
