"""Every method by name. A new one is a file here and a line below."""

from lifelabel.methods.agcn import AGCN
from lifelabel.methods.base import Batch, Method
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.methods.multi_task import MultiTask

METHODS: dict[str, type[Method]] = {
    "agcn": AGCN,
    "fine-tuning": FineTuning,
    "multi-task": MultiTask,
}

__all__ = ["METHODS", "Batch", "Method"]
