"""lifelabel: lifelong multi-label image recognition.

>>> import lifelabel
>>> lifelabel.Config.make({"method": "agcn", "fidelity": "paper"}).method_options.new_old
'bayes'
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from lifelabel.errors import UserError
from lifelabel.version import __version__

if TYPE_CHECKING:
    from lifelabel.config import Config
    from lifelabel.engine import Result, resume, train

# Before torch loads: on a machine with other work, torch's threads otherwise starve it, and each other, by waiting
# busily (a step took 2 to 10 times as long); on an idle one it makes no difference.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__all__ = ["Config", "Result", "UserError", "__version__", "resume", "train"]

_HOMES = {"Config": "lifelabel.config", "Result": "lifelabel.engine", "resume": "lifelabel.engine", "train": "lifelabel.engine"}  # fmt: skip  # noqa: E501


def __getattr__(name: str) -> Any:
    """Import torch only when something needs it: `lifelabel --help` answers at once."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'lifelabel' has no attribute '{name}'")
