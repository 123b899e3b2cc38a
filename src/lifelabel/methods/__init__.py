"""Every method by name, in the order of the paper's Table 1. A new one is a file here and a line below."""

from lifelabel.methods.agcn import AGCN
from lifelabel.methods.agem import AGEM
from lifelabel.methods.base import Batch, Method
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

METHODS: dict[str, type[Method]] = {
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

__all__ = ["METHODS", "Batch", "Method"]
