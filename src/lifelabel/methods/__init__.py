"""The built-in methods, in the order in which tables list them, and the registry that holds them by name."""

from lifelabel.methods.agcn import AGCN
from lifelabel.methods.agem import AGEM
from lifelabel.methods.base import Batch, Footprint, HostBatch, Method
from lifelabel.methods.der_pp import DERpp
from lifelabel.methods.er import ER
from lifelabel.methods.ewc import EWC
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.methods.frozen import Frozen
from lifelabel.methods.l3a import L3A
from lifelabel.methods.lwf import LwF
from lifelabel.methods.multi_task import MultiTask
from lifelabel.methods.ocdm import OCDM
from lifelabel.methods.prs import PRS
from lifelabel.registry import Registry

__all__ = ["METHODS", "Batch", "FineTuning", "Footprint", "HostBatch", "Method"]

METHODS: Registry[type[Method]] = Registry(
    "method", lambda item: isinstance(item, type) and issubclass(item, Method), "a subclass of lifelabel.Method"
)
_BUILT_IN: dict[str, type[Method]] = {
    "multi-task": MultiTask,
    "fine-tuning": FineTuning,
    "ewc": EWC,
    "lwf": LwF,
    "agem": AGEM,
    "er": ER,
    "prs": PRS,
    "der++": DERpp,
    "ocdm": OCDM,
    "frozen": Frozen,
    "l3a": L3A,
    "agcn": AGCN,
}
for _name, _method in _BUILT_IN.items():
    METHODS.register(_name, _method)
