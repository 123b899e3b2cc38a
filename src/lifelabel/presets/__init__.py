"""Options that measured best, a file for every method and kind of stream: `KIND/METHOD.yaml` in this folder.

Each file says in its first lines which command made it and what it reached. `--fidelity tuned`, the default, takes
them; `lifelabel tune` writes such a file, which `--config` takes.
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Any, NamedTuple

import yaml

KINDS = ("scenes", "photographs")


class Story(NamedTuple):
    """Where a preset comes from: the command that chose its options, and what they reached."""

    command: str
    reached: str


@functools.cache
def _text(kind: str, method: str) -> str:
    path = resources.files(__name__) / kind / f"{method}.yaml"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def preset(kind: str, method: str) -> dict[str, Any]:
    """The options of a method on a kind of stream; none where nothing was shipped."""
    values = dict(yaml.safe_load(_text(kind, method)) or {})
    values.pop("method", None)
    return values


def described(kind: str, method: str) -> Story | None:
    """What the first lines of a preset say; None where nothing was shipped."""
    text = _text(kind, method)
    return story(text) if text else None


def story(text: str) -> Story:
    """The command and the figure in the comments of a preset.

    >>> story("# command: lifelabel tune --method er\\n# reached: 71.23 mAP\\nmethod: er\\n").reached
    '71.23 mAP'
    """
    said = dict(re.findall(r"^# (command|reached): (.+)$", text, re.MULTILINE))
    return Story(said.get("command", ""), said.get("reached", ""))
