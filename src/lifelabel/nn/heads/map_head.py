"""Heads on the last feature map of a backbone. They grow with each task, and can be built from a plain description."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

_MAX_NUMBER, _MAX_TASKS = 10_000_000, 10_000
_SCORED_ENTRIES = 1 << 26
"""Entries of a classes x classes matrix of each image that are in memory at a time when images are scored."""


class MapHead(nn.Module, ABC):
    """Feature maps (B x dim x h x w, float32) to the logits of all classes (B x classes).

    A subclass passes the numbers that its constructor gets to this one, so that `build_head` can make the same head
    again. `grow` adds the parameters of the new classes and does not change the old ones.
    """

    kind: ClassVar[str]
    """The name of the subclass in `describe`."""
    kinds: ClassVar[dict[str, type[MapHead]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in cls.__dict__:
            MapHead.kinds[cls.kind] = cls

    def __init__(self, **numbers: int | float):
        super().__init__()
        self.numbers = numbers
        self.sizes: list[int] = []
        """The number of classes of each task so far."""

    def grow(self, new: int, device: torch.device) -> None:
        """Begin a task with `new` classes."""
        self.sizes.append(new)
        self.add_classes(new, device)

    @abstractmethod
    def add_classes(self, new: int, device: torch.device) -> None:
        """Add the parameters of `new` classes, on the device."""

    @abstractmethod
    def forward(self, maps: Tensor) -> Tensor: ...

    def score(self, maps: Tensor) -> Tensor:
        """The logits of many images, for fewer of them at a time if there are many classes."""
        rows = max(1, _SCORED_ENTRIES // sum(self.sizes) ** 2)
        return torch.cat([self(part) for part in maps.split(rows)])

    def describe(self) -> dict[str, Any]:
        """What `build_head` needs, in plain values."""
        return {"kind": self.kind, "numbers": dict(self.numbers), "sizes": list(self.sizes)}


def build_head(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> MapHead:
    """The head of a `describe` and its state dict. It shares their memory.

    The description may be from a file that is damaged or malicious: it takes no memory, and only the tensors do. Raises
    KeyError, RuntimeError, TypeError or ValueError if they do not fit.
    """
    numbers, sizes = description["numbers"], description["sizes"]
    fits = isinstance(numbers, Mapping) and isinstance(sizes, list) and 1 <= len(sizes) <= _MAX_TASKS
    if not fits or not all(_is_number(each) for each in (*numbers.values(), *sizes)) or not all(sizes):
        raise ValueError("the numbers of the head are not valid")
    if not all(tensor.is_floating_point() for tensor in tensors.values()):
        raise ValueError("a tensor of the head has whole numbers")
    try:
        with torch.device("meta"):
            head = MapHead.kinds[description["kind"]](**numbers)
            for size in sizes:
                head.grow(size, torch.device("meta"))
    except ZeroDivisionError:
        raise ValueError("a size of the head is 0") from None
    head.load_state_dict(dict(tensors), assign=True)
    return head


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MAX_NUMBER
