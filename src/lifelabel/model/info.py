"""What model.json says about a model, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lifelabel.nn.frozen_features import PARTS
from lifelabel.streams.table import class_name
from lifelabel.utils.text import MAX_TASK_NAME, printable

__all__ = ["MAX_TRAINED", "ModelInfo", "is_int", "require"]

_MAX_CLASSES, _MAX_TEXT, _MAX_RELATIONS, _MAX_PARTS = 100_000, 10_000, 100, 8
_MIN_SIZE, _MAX_SIZE = 16, 4096
MAX_TRAINED = 1 << 26
"""Training images whose hashes are read: 1 GiB."""


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
        _check(self)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> ModelInfo:
        """The inverse of `to_dict`, from untrusted values. Unknown keys are ignored."""
        given = {each.name: values[each.name] for each in dataclasses.fields(ModelInfo) if each.name in values}
        for name in ("classes", "task_of_class", "normalize"):
            require(isinstance(given.get(name), list), f"no list {name}")
        for each in dataclasses.fields(ModelInfo):
            optional = each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING
            require(optional or each.name in given, f"no {each.name}")
        for name in ("classes", "task_of_class", "normalize", "thresholds", "task_names"):
            if isinstance(given.get(name), list):
                given[name] = tuple(given[name])
        if (relations := given.get("relations")) is not None:
            rows = isinstance(relations, list) and all(isinstance(row, list) for row in relations)
            require(rows and all(isinstance(pair, list) for row in relations for pair in row), "relations")
            given["relations"] = tuple(tuple(map(tuple, row)) for row in relations)
        return ModelInfo(**given)


def require(condition: bool, what: str) -> None:
    """Raise ValueError with the reason if a condition is not met."""
    if not condition:
        raise ValueError(what)


def is_int(value: object, low: int, high: float = 2**53) -> bool:
    """Whether an untrusted value is a whole number of a range."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: object, low: float = -1e9, high: float = 1e9) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high  # not NaN


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _are_numbers(values: object, count: int, low: float = -1e9, high: float = 1e9) -> bool:
    """Whether `values` is a list or tuple of so many numbers of a range."""
    if not isinstance(values, list | tuple) or len(values) != count:
        return False
    return all(_is_number(value, low, high) for value in values)


def _check(info: ModelInfo) -> None:
    classes = info.classes
    require(1 <= len(classes) <= _MAX_CLASSES, "the number of classes")
    for name in classes:
        require(isinstance(name, str), "a class name that is not text")
        class_name(name)
    require(len(set(classes)) == len(classes), "two classes of the same name")
    tasks = info.task_of_class
    require(len(tasks) == len(classes) and all(is_int(task, 0, len(classes)) for task in tasks), "task_of_class")
    names = info.task_names
    require(isinstance(names, tuple) and len(names) in (0, max(tasks) + 1), "task_names")
    for name in names:
        require(isinstance(name, str) and len(name) <= MAX_TASK_NAME and printable(name) == name, "task_names")
    require(is_int(info.image_size, _MIN_SIZE, _MAX_SIZE), f"image_size is not {_MIN_SIZE} to {_MAX_SIZE}")
    for key in ("method", "label", "backbone", "precision"):
        require(_is_text(getattr(info, key)), key)
    require(info.pool in ("max", "avg"), "pool")
    require(1 <= len(info.normalize) <= _MAX_PARTS, "normalize")
    for each in info.normalize:
        good = isinstance(each, dict) and _are_numbers(each.get("mean"), 3)
        require(good and _are_numbers(each.get("std"), 3, low=1e-6), "normalize")
    require(isinstance(info.provenance, dict), "provenance")
    require(all(value is None or _is_text(value) for value in info.provenance.values()), "provenance")
    _check_network(info.network)
    require(info.thresholds is None or _are_numbers(info.thresholds, len(classes), 0, 1), "thresholds")
    if info.calibration is not None:
        require(isinstance(info.calibration, dict), "calibration")
        for key in ("slope", "shift"):
            require(_are_numbers(info.calibration.get(key), len(classes)), f"calibration: {key}")
    if info.relations is not None:
        _check_relations(info.relations, len(classes))
    if (trained := info.trained) is not None:
        good = isinstance(trained, dict) and is_int(trained.get("images"), 0, MAX_TRAINED)
        require(good and is_int(trained.get("side"), 1, 2 * _MAX_SIZE) and _is_text(trained.get("sha256")), "trained")
    require(isinstance(info.stream, dict) and isinstance(info.training, dict), "stream or training")


def _check_network(network: object) -> None:
    require(isinstance(network, dict), "network")
    assert isinstance(network, dict)
    if "head" in network:
        require(isinstance(network["head"], dict), "network: head")  # `build_head` checks the rest against the tensors
        return
    require(_is_number(network.get("context")), "network: context")
    if "parts" in network:
        parts = network["parts"]
        known = isinstance(parts, list | tuple) and all(part in PARTS for part in parts) and len(parts) > 0
        require(known and network.get("views") in (1, 2), "network: parts or views")
    else:
        good = isinstance(network.get("standardise"), bool) and isinstance(network.get("normalise", False), bool)
        require(good, "network: standardise or normalise")


def _check_relations(relations: Sequence[Any], classes: int) -> None:
    require(isinstance(relations, list | tuple) and len(relations) == classes, "relations")
    for row in relations:
        require(isinstance(row, list | tuple) and len(row) <= _MAX_RELATIONS, "relations")
        for pair in row:
            good = isinstance(pair, list | tuple) and len(pair) == 2
            require(good and is_int(pair[0], 0, classes - 1) and _is_number(pair[1], 0, 1), "relations")
