"""The content of model.json, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lifelabel.nn.frozen_features import PARTS
from lifelabel.streams.table import class_name
from lifelabel.utils.text import MAX_TASK_NAME, printable

_MAX_CLASSES, _MAX_TEXT, _MAX_RELATIONS, _MAX_PARTS = 100_000, 10_000, 100, 8
_MIN_SIZE, _MAX_SIZE = 16, 4096
MAX_TRAINED = 1 << 26
"""Training images whose hashes are read: 1 GiB."""
_OPTIONAL = ("thresholds", "calibration", "relations", "trained")


@dataclass(frozen=True)
class ModelInfo:
    """The content of model.json in plain values. Raises ValueError with the reason if a value cannot be right."""

    classes: tuple[str, ...]
    task_of_class: tuple[int, ...]
    """The task of each class, from 0."""
    image_size: int
    """Side in pixels to which images are resized."""
    method: str
    label: str
    """The method with the options that differ from its defaults."""
    backbone: str
    """A name as in `--backbone`; "a+b" for two networks side by side."""
    pool: str
    normalize: tuple[dict[str, list[float]], ...]
    """`mean` and `std` of the pixels for each network of the backbone."""
    provenance: dict[str, str | None]
    """The origin of the initial weights: `Provenance.to_dict()`."""
    network: dict[str, Any]
    """`InferenceNetwork.describe()`."""
    precision: str = "fp32"
    """The precision of the training."""
    thresholds: tuple[float, ...] | None = None
    """The smallest probability at which each class is a label of an image. None: 0.5."""
    calibration: dict[str, Any] | None = None
    """`slope` and `shift` of each class: the probability is sigmoid(slope * logit + shift). None: 1 and 0."""
    relations: tuple[tuple[tuple[int, float], ...], ...] | None = None
    """For each class, the most probable other classes in an image of it: pairs of index and probability."""
    trained: dict[str, Any] | None = None
    """The `images`, the `side` and the `sha256` of training-images.bin. None: it is not known which they are."""
    stream: dict[str, Any] = field(default_factory=dict)
    """`name` and `fingerprint` of the stream, and its `dataset` if it is a public one."""
    task_names: tuple[str, ...] = ()
    """The names of the tasks, if they have names."""
    training: dict[str, Any] = field(default_factory=dict)
    """Facts for the model card: `final` figures, `ap` by class, `images` by task, `seed`, `date`, `plugins` …"""

    def __post_init__(self) -> None:
        _check_classes(self.classes)
        count, given = len(self.classes), vars(self)
        require(_fits(given["task_of_class"], [_whole(0, count), count]), "task_of_class")
        for name, kind in _kinds(count, max(self.task_of_class) + 1).items():
            require((given[name] is None and name in _OPTIONAL) or _fits(given[name], kind), name)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> ModelInfo:
        """The inverse of `to_dict`, from untrusted values. Unknown keys are ignored."""
        fields = dataclasses.fields(ModelInfo)
        given = {each.name: values[each.name] for each in fields if each.name in values}
        for name in ("classes", "task_of_class", "normalize"):
            require(isinstance(given.get(name), list), f"no list {name}")
        for each in fields:
            optional = each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING
            require(optional or each.name in given, f"no {each.name}")
        tuples = ("classes", "task_of_class", "normalize", "thresholds", "task_names", "relations")
        return ModelInfo(**{name: _as_tuple(value) if name in tuples else value for name, value in given.items()})


def require(condition: bool, what: str) -> None:
    """Raise ValueError with the reason if a condition is not met."""
    if not condition:
        raise ValueError(what)


def is_int(value: object, low: int, high: float = 2**53) -> bool:
    """Whether an untrusted value is a whole number of a range."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _check_classes(classes: Sequence[Any]) -> None:
    require(1 <= len(classes) <= _MAX_CLASSES, "the number of classes")
    for name in classes:
        require(isinstance(name, str), "a class name that is not text")
        class_name(name)
    require(len(set(classes)) == len(classes), "two classes of the same name")


def _fits(value: Any, kind: Any) -> bool:
    """Whether an untrusted value is of a kind.

    A kind is a function of the value, {key: kind} for a dict with at least these keys, or [kind, numbers of items] for
    a list.
    """
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(_fits(value.get(key), each) for key, each in kind.items())
    if isinstance(kind, list):
        item, counts = kind[0], (kind[1],) if isinstance(kind[1], int) else kind[1]
        return isinstance(value, list | tuple) and len(value) in counts and all(_fits(each, item) for each in value)
    return bool(kind(value))


def _kinds(classes: int, tasks: int) -> dict[str, Any]:
    """The kinds of the fields of a `ModelInfo` by their names."""
    number, share = _number(), _number(0, 1)
    return {
        "task_names": [lambda name: _text(name) and len(name) <= MAX_TASK_NAME and printable(name) == name, (0, tasks)],
        "image_size": _whole(_MIN_SIZE, _MAX_SIZE),
        **dict.fromkeys(("method", "label", "backbone", "precision"), _text),
        "pool": lambda name: name in ("max", "avg"),
        "normalize": [{"mean": [number, 3], "std": [_number(1e-6), 3]}, range(1, _MAX_PARTS + 1)],
        "provenance": lambda given: _fits(given, {}) and all(each is None or _text(each) for each in given.values()),
        "network": lambda network: _fits(network, {}) and _fits(network, _network_kind(network)),
        "thresholds": [share, classes],
        "calibration": {"slope": [number, classes], "shift": [number, classes]},
        "relations": [
            [lambda pair: _fits(pair, [number, 2]) and is_int(pair[0], 0, classes - 1) and share(pair[1]),
             range(_MAX_RELATIONS + 1)], classes,
        ],
        "trained": {"images": _whole(0, MAX_TRAINED), "side": _whole(1, 2 * _MAX_SIZE), "sha256": _text},
        "stream": {},
        "training": {},
    }  # fmt: skip


def _network_kind(network: Mapping[str, Any]) -> dict[str, Any]:
    if "head" in network:
        return {"head": {}}  # `build_head` checks the rest against the tensors
    if "parts" in network:
        views = {"views": lambda number: number in (1, 2)}
        return {"context": _number(), "parts": [lambda part: part in PARTS, range(1, len(PARTS) + 1)], **views}
    return {"context": _number(), **dict.fromkeys(("standardise", "normalise"), lambda value: isinstance(value, bool))}


def _whole(low: int, high: float) -> Callable[[Any], bool]:
    return lambda value: is_int(value, low, high)


def _number(low: float = -1e9, high: float = 1e9) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT
