"""The built-in methods, in the order in which tables list them, and the registry that holds them by name."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from lifelabel.errors import UserError
from lifelabel.methods.agcn import AGCN
from lifelabel.methods.agcn_pp import AGCNpp
from lifelabel.methods.agem import AGEM
from lifelabel.methods.csc import CSC
from lifelabel.methods.der_pp import DERpp
from lifelabel.methods.er import ER
from lifelabel.methods.ewc import EWC
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.methods.frozen import Frozen
from lifelabel.methods.icarl import ICaRL
from lifelabel.methods.krt import KRT, KRTReplay
from lifelabel.methods.l3a import L3A
from lifelabel.methods.lwf import LwF
from lifelabel.methods.method import Batch, Footprint, HostBatch, Method
from lifelabel.methods.ml_gcn import MLGCN, MLGCNLifelong
from lifelabel.methods.multi_task import MultiTask
from lifelabel.methods.ocdm import OCDM
from lifelabel.methods.prs import PRS
from lifelabel.methods.rebll import RebLL
from lifelabel.methods.rm import RM
from lifelabel.methods.weighted_ridge import WeightedRidge
from lifelabel.registry import Registry

__all__ = ["METHODS", "Batch", "FineTuning", "Footprint", "HostBatch", "Method"]


def _is_method(item: Any) -> bool:
    if not (isinstance(item, type) and issubclass(item, Method)):
        return False
    missing = sorted(item.__abstractmethods__)
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


METHODS: Registry[type[Method]] = Registry("method", _is_method, "a subclass of lifelabel.Method")
_BUILT_IN: dict[str, type[Method]] = {
    "multi-task": MultiTask,
    "ml-gcn": MLGCN,
    "fine-tuning": FineTuning,
    "ewc": EWC,
    "lwf": LwF,
    "agem": AGEM,
    "er": ER,
    "prs": PRS,
    "der++": DERpp,
    "ocdm": OCDM,
    "icarl": ICaRL,
    "rm": RM,
    "frozen": Frozen,
    "l3a": L3A,
    "weighted-ridge": WeightedRidge,
    "ml-gcn-lifelong": MLGCNLifelong,
    "agcn": AGCN,
    "krt": KRT,
    "krt-r": KRTReplay,
    "csc": CSC,
    "agcn++": AGCNpp,
    "rebll": RebLL,
}
for _name, _method in _BUILT_IN.items():
    METHODS.register(_name, _method)
METHODS.set_built_in()
