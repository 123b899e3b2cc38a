"""Parts that methods are composed of: what trains, a head that grows, and the frozen expert."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace
from torch.nn.utils.fusion import fuse_conv_bn_eval

from lifelabel import backbones
from lifelabel.backbones import Backbone
from lifelabel.recording import steady, worth_compiling

if TYPE_CHECKING:
    from lifelabel.config import Config


@dataclass(frozen=True)
class Setting:
    """All that a method may know of its run: the shared options, and nothing of the stream."""

    backbone: Backbone
    embed: Callable[[Sequence[str]], Tensor]
    device: torch.device
    lr: float
    backbone_lr: float
    later_backbone_lr: float
    batch_norm: str
    adam_eps: float
    reduction: str
    precision: str
    augment: str
    record: bool
    """Whether steps are replayed as CUDA graphs on a GPU."""
    compile: bool
    """Whether the backbone's passes in recorded steps are compiled."""

    @classmethod
    def of(
        cls, config: Config, embed: Callable[[Sequence[str]], Tensor], device: torch.device, steps: int = 0
    ) -> Setting:
        """The setting of a run of so many steps: its options by the names they have in the configuration, a fresh
        backbone."""
        given: dict[str, Any] = {
            "backbone": backbones.build(config.backbone, config.pool, config.weights),
            "embed": embed,
            "device": device,
            "precision": config.precision_on(device),
            "record": config.compile != "off" and device.type == "cuda",
            "compile": worth_compiling(config.compile, device, steps),
        }
        names = [field.name for field in dataclasses.fields(cls) if field.name not in given]
        return cls(**given, **{name: getattr(config, name) for name in names})

    @property
    def fast(self) -> bool:
        """Bfloat16 on a GPU."""
        return self.precision == "bf16" and self.device.type == "cuda"

    @property
    def memory_format(self) -> torch.memory_format:
        """How the backbone and its images lie in memory: a GPU convolves bfloat16 fastest with the channels last."""
        return torch.channels_last if self.fast else torch.contiguous_format

    def place_backbone(self) -> Backbone:
        """The backbone where, and as, it runs fastest."""
        self.backbone.to(self.device)
        self.backbone.to(memory_format=self.memory_format)  # type: ignore[call-overload]  # torch's types lack it
        return self.backbone

    def in_precision(self) -> contextlib.AbstractContextManager:
        """Large products in here are made in the run's precision."""
        if self.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)  # CUDA graphs cannot use the cache


class Learner:
    """A backbone and a head that learn together: two learning rates, one Adam per task, batch norm as told."""

    def __init__(self, head: nn.Module, setting: Setting):
        self.setting = setting
        self.backbone = setting.place_backbone()
        self.head = head.to(setting.device)
        self.optimizer: torch.optim.Optimizer | None = None
        self.frozen = False

    def begin_task(self, first: bool) -> None:
        """A fresh Adam (as in the authors' code); the backbone slows down after the first task."""
        s = self.setting
        self.freeze_statistics = s.batch_norm == "frozen" or (s.batch_norm == "first-task" and not first)
        groups = [
            {"params": list(self.backbone.parameters()), "lr": s.backbone_lr if first else s.later_backbone_lr},
            {"params": list(self.head.parameters()), "lr": s.lr},
        ]
        on_gpu = s.device.type == "cuda"  # there its steps are counted where they are recorded
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.999), eps=s.adam_eps, fused=True, capturable=on_gpu)

    def freeze(self) -> None:
        """The backbone stays as it is from now on: it has no gradients, and runs as when it is scored."""
        self.frozen = True
        self.backbone.requires_grad_(False)

    def features(self, images: Tensor) -> Tensor:
        """Features in float32, computed in the run's precision; training mode inside `torch.enable_grad`."""
        if torch.is_grad_enabled() and not self.frozen:
            # one image has no statistics of its own: batch norm then uses those it has
            still = self.freeze_statistics or len(images) == 1
            self.backbone.set_training(still)
        else:
            self.backbone.eval()
        return run_backbone(self.backbone, images, self.setting)

    def step(self, loss: Tensor) -> None:
        assert self.optimizer is not None, "begin_task comes first"
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict() if self.optimizer else None
        return {"backbone": self.backbone.state_dict(), "head": self.head.state_dict(), "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore; the head must have grown, and the task begun, as they had when the state was taken."""
        self.backbone.load_state_dict(state["backbone"])
        self.head.load_state_dict(state["head"])
        if self.optimizer is not None:
            # a configuration edited before going on counts, and the device may be another one
            chosen = [{k: group[k] for k in ("lr", "eps", "capturable")} for group in self.optimizer.param_groups]
            self.optimizer.load_state_dict(state["optimizer"])
            for group, ours in zip(self.optimizer.param_groups, chosen, strict=True):
                group.update(ours)
            # the fused Adam walks through memory: its moments must lie as the parameter does on this device
            for parameter, moments in self.optimizer.state.items():
                for name in ("exp_avg", "exp_avg_sq"):
                    moments[name] = torch.empty_like(parameter).copy_(moments[name])


class LinearHead(nn.Module):
    """A linear classifier that gets new rows with each task; the old rows are not touched by growing."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()

    def grow(self, new: int, device: torch.device) -> None:
        weight, bias = torch.empty(new, self.dim), torch.zeros(new)
        nn.init.uniform_(weight, -1 / math.sqrt(self.dim), 1 / math.sqrt(self.dim))
        self.weights.append(weight.to(device))
        self.biases.append(bias.to(device))

    def rows(self) -> tuple[Tensor, Tensor]:
        """Weights (classes x dim) and biases (classes) of all classes so far."""
        return torch.cat(list(self.weights)), torch.cat(list(self.biases))

    def forward(self, features: Tensor) -> Tensor:
        weight, bias = self.rows()
        return features @ weight.T + bias


class Expert:
    """CNN_xpt and AGCN_xpt as they were when a task ended (Sec. 3.2). Nothing in it changes any more.

    The expert's matrix and label words are fixed, so its node outputs G are too: they are computed once a task
    and kept instead of the graph that made them. The nodes of a linear head are its rows, and it has a bias.

    The network of the `last` expert, which is needed no more, gets the new weights: what was compiled for it fits.
    A network that is compiled has batch norm folded into its convolutions where it can be, which is faster then, and
    only then.
    """

    def __init__(
        self, backbone: Backbone, nodes: Tensor, setting: Setting, bias: Tensor | None = None,
        last: Expert | None = None, fold: bool | None = None,
    ):  # fmt: skip
        self.setting = setting
        self.fold = setting.compile if fold is None else fold
        if last is None or last.fold != self.fold:
            copied = frozen(backbone, self.fold)
            self.backbone = with_products_in_bfloat16(copied) if setting.fast else copied
        else:
            self.backbone = last.backbone
            new = frozen(backbone, fold=True) if self.fold else backbone
            self.backbone.load_state_dict(new.state_dict())
        self.nodes = nodes.detach().clone()
        self.bias = None if bias is None else bias.detach().clone()

    @classmethod
    def restore(cls, state: dict[str, Any], backbone: Backbone, setting: Setting) -> Expert:
        """The expert of a `state_dict`, with a backbone of the same kind as `backbone`, on this or another device."""
        nodes, bias = state["nodes"].to(setting.device), state.get("bias")
        fold = state["backbone"].keys() != backbone.state_dict().keys()
        expert = cls(backbone, nodes, setting, None if bias is None else bias.to(setting.device), fold=fold)
        expert.backbone.load_state_dict(state["backbone"])
        return expert

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """The expert's logits for the old classes; their sigmoid are the soft labels (Eq. 3)."""
        logits = run_backbone(self.backbone, images, self.setting) @ self.nodes.T
        return logits if self.bias is None else logits + self.bias

    @property
    def bytes(self) -> int:
        """What it takes to keep it."""
        head = [self.nodes] if self.bias is None else [self.nodes, self.bias]
        return sum(tensor.nbytes for tensor in (*self.backbone.state_dict().values(), *head))

    def state_dict(self) -> dict[str, Any]:
        return {"backbone": self.backbone.state_dict(), "nodes": self.nodes, "bias": self.bias}


def frozen(backbone: Backbone, fold: bool) -> Backbone:
    """A copy that will not learn, on request with batch norm folded into the convolutions before it."""
    copied = copy.deepcopy(backbone).eval().requires_grad_(False)
    if fold:
        body = copied.body
        for conv, norm in foldable(body):
            both: Any = body.get_submodule(conv), body.get_submodule(norm)
            body.set_submodule(conv, fuse_conv_bn_eval(*both))
            body.set_submodule(norm, nn.Identity())
    return copied


def foldable(body: nn.Module) -> list[tuple[str, str]]:
    """Names of convolutions and of the batch norm behind each, where no one else reads what the convolution puts out;
    none where torch cannot trace the way of an image through the network."""
    try:
        nodes = [node for node in symbolic_trace(body).graph.nodes if node.op == "call_module"]
    except Exception:  # what cannot be traced says so in many ways
        return []
    modules, calls = dict(body.named_modules()), Counter(node.target for node in nodes)
    pairs = [(node.args[0], node) for node in nodes if node.args and type(modules[node.target]) is nn.BatchNorm2d]
    return [
        (conv.target, norm.target)
        for conv, norm in pairs
        if conv.op == "call_module" and type(modules[conv.target]) is nn.Conv2d and len(conv.users) == 1
        and calls[conv.target] == calls[norm.target] == 1 and modules[norm.target].track_running_stats
    ]  # fmt: skip


def with_products_in_bfloat16(backbone: Backbone) -> Backbone:
    """The same with the weights that autocast would turn into bfloat16 at every step turned once, in place."""
    for module in backbone.modules():
        if type(module) in (nn.Conv2d, nn.Linear):
            module.to(torch.bfloat16)
    return backbone


def run_backbone(backbone: Backbone, images: Tensor, setting: Setting) -> Tensor:
    """Features in float32."""
    body = compiled() if setting.compile and steady.get() else plain
    with setting.in_precision():
        # the pool is not compiled: a compiled bfloat16 maximum can differ in its last bits from what it was taken of
        return backbone.pooled(body(backbone, images.contiguous(memory_format=setting.memory_format))).float()


def plain(backbone: Backbone, images: Tensor) -> Tensor:
    return backbone.body(images)


@functools.cache
def compiled() -> Callable[[Backbone, Tensor], Tensor]:
    """`plain`, compiled for each shape that it is called with: so only with shapes that stay."""
    # memory that a backward pass may take over: EWC's second pass over the same graph cannot be made then
    torch._functorch.config.donated_buffer = False
    torch._dynamo.config.recompile_limit = 64  # student and expert, running and frozen statistics, two or three shapes
    return torch.compile(plain, dynamic=False)
