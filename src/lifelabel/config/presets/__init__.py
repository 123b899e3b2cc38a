"""Presets: options that `lifelabel tune` chose, in one file per kind of stream and method, `KIND/METHOD.yaml`.

The comments of a file state the command that chose the options, and the score that they reached. The default,
`--fidelity tuned`, uses these files. `lifelabel tune` writes such a file, and `--config` reads it.
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Any, NamedTuple

from lifelabel.errors import UserError
from lifelabel.utils.yaml_reader import parse_yaml

KINDS = ("scenes", "photographs")
_ADVICE = "install lifelabel again, or give --fidelity plain"


class PresetOrigin(NamedTuple):
    """The origin of a preset: the command that chose its options, and the score that they reached."""

    command: str
    reached: str


@functools.cache
def _text(kind: str, method: str) -> str:
    """The text of a preset; empty if the method has none."""
    folder = resources.files(__name__) / kind
    path = folder / f"{method}.yaml"
    if folder.is_dir() and not path.is_file():
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise UserError(f"the preset {path} is missing or damaged: {_ADVICE}") from None


def load(kind: str, method: str) -> dict[str, Any]:
    """The options of a method on a kind of stream; empty if there is no preset."""
    text = _text(kind, method)
    name = f"the preset {resources.files(__name__) / kind / method}.yaml"
    values = parse_yaml(text, name, _ADVICE) if text else {}
    if not isinstance(values, dict) or values.pop("method", method) != method:
        raise UserError(f"{name} is damaged: {_ADVICE}")
    return values


def origin(kind: str, method: str) -> PresetOrigin | None:
    """The origin of a preset; None if there is no preset."""
    text = _text(kind, method)
    return parse_origin(text) if text else None


def parse_origin(text: str) -> PresetOrigin:
    """The origin in the comments of a preset; a missing part is empty.

    >>> parse_origin("# command: lifelabel tune --method er\\n# reached: 71.23 mAP\\nmethod: er\\n").reached
    '71.23 mAP'
    """
    found = dict(re.findall(r"^# (command|reached): (.+)$", text, re.MULTILINE))
    return PresetOrigin(found.get("command", ""), found.get("reached", ""))
