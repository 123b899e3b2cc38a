"""Options that measured best, a file for every method and kind of stream: `presets/KIND/METHOD.yaml`.

Each file says in its first lines which command made it and what it reached. `--fidelity tuned`, the default, takes
them; `lifelabel tune` writes such a file, which `--config` takes.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import yaml

KINDS = ("scenes", "photographs")


@functools.cache
def _text(kind: str, method: str) -> str:
    path = resources.files("lifelabel") / "presets" / kind / f"{method}.yaml"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def preset(kind: str, method: str) -> dict[str, Any]:
    """The options of a method on a kind of stream; none where nothing was shipped."""
    values = dict(yaml.safe_load(_text(kind, method)) or {})
    values.pop("method", None)
    return values
