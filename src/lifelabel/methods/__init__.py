"""The registry of methods. A class in a file of this folder is a method if it has a `summary` of its own.

Its name is that of its file (`my-bar` in my_bar.py) or its attribute `name`. No list outside the file names it.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from lifelabel.errors import UserError
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.methods.method import Batch, Footprint, HostBatch, Method
from lifelabel.registry import Registry

__all__ = ["METHODS", "Batch", "FineTuning", "Footprint", "HostBatch", "Method"]


def _is_method(item: Any) -> bool:
    if not (isinstance(item, type) and issubclass(item, Method)):
        return False
    missing = list(item.__abstractmethods__)
    if not item.saved:
        missing += [each for each in ("load_state_dict", "state_dict") if getattr(item, each) is getattr(Method, each)]
    missing.sort()
    if item.learn is Method.learn and item.observe is Method.observe:
        missing.append("learn")
    if missing:
        raise UserError(f"the method {item.__name__} is not complete: implement {', '.join(missing)}")
    if not is_dataclass(item.Options):
        raise UserError(f"the Options of the method {item.__name__} must be a dataclass")
    if not isinstance(item.presets, Mapping) or not all(isinstance(each, Mapping) for each in item.presets.values()):
        raise UserError(f"the presets of the method {item.__name__} must be a dict of options by kind of stream")
    if unknown := item.search_space.keys() - {field.name for field in fields(item.Options)}:
        names = ", ".join(sorted(unknown))
        raise UserError(f"the search_space of the method {item.__name__} has options that it does not declare: {names}")
    return True


METHODS: Registry[type[Method]] = Registry("method", _is_method, "a subclass of lifelabel.Method", finds=True)
METHODS.register_package(__name__, Path(__file__).parent)
