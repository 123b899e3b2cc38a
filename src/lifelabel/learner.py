"""Parts that methods are composed of: what trains, a head that grows, and the frozen expert."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lifelabel import backbones
from lifelabel.backbones import Backbone

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
    cuda_graphs: bool

    @classmethod
    def of(cls, config: Config, embed: Callable[[Sequence[str]], Tensor], device: torch.device) -> Setting:
        """The setting of a run: its options by the names they have in the configuration, a fresh backbone."""
        given: dict[str, Any] = {
            "backbone": backbones.build(config.backbone, config.pool, config.weights),
            "embed": embed,
            "device": device,
        }
        names = [field.name for field in dataclasses.fields(cls) if field.name not in given]
        return cls(**given, **{name: getattr(config, name) for name in names})

    @property
    def memory_format(self) -> torch.memory_format:
        """How the backbone and its images lie in memory: a GPU convolves bfloat16 fastest with the channels last."""
        fast = self.precision == "bf16" and self.device.type == "cuda"
        return torch.channels_last if fast else torch.contiguous_format


class Learner:
    """A backbone and a head that learn together: two learning rates, one Adam per task, batch norm as told."""

    def __init__(self, head: nn.Module, setting: Setting):
        self.setting = setting
        self.backbone = setting.backbone.to(setting.device)
        self.backbone.to(memory_format=setting.memory_format)  # type: ignore[call-overload]  # torch's types lack it
        self.head = head.to(setting.device)
        self.optimizer: torch.optim.Optimizer | None = None
        self.frozen = False
        self.replays = Replays(self.backbone, setting)

    def begin_task(self, first: bool) -> None:
        """A fresh Adam (as in the authors' code); the backbone slows down after the first task."""
        s = self.setting
        self.freeze_statistics = s.batch_norm == "frozen" or (s.batch_norm == "first-task" and not first)
        groups = [
            {"params": list(self.backbone.parameters()), "lr": s.backbone_lr if first else s.later_backbone_lr},
            {"params": list(self.head.parameters()), "lr": s.lr},
        ]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.999), eps=s.adam_eps, fused=True)

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
            return self.replays(images, still)
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
            chosen = [(group["lr"], group["eps"]) for group in self.optimizer.param_groups]
            self.optimizer.load_state_dict(state["optimizer"])
            for group, (lr, eps) in zip(self.optimizer.param_groups, chosen, strict=True):
                group["lr"], group["eps"] = lr, eps  # a configuration edited before going on counts
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
    """

    def __init__(self, backbone: Backbone, nodes: Tensor, setting: Setting, bias: Tensor | None = None):
        self.setting = setting
        self.backbone = copy.deepcopy(backbone).eval().requires_grad_(False)
        self.nodes = nodes.detach().clone()
        self.bias = None if bias is None else bias.detach().clone()
        self.replays = Replays(self.backbone, setting)

    @classmethod
    def restore(cls, state: dict[str, Any], backbone: Backbone, setting: Setting) -> Expert:
        """The expert of a `state_dict`, with a backbone of the same kind as `backbone`."""
        nodes, bias = state["nodes"].to(setting.device), state.get("bias")
        expert = cls(backbone, nodes, setting, None if bias is None else bias.to(setting.device))
        expert.backbone.load_state_dict(state["backbone"])
        return expert

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """The expert's logits for the old classes; their sigmoid are the soft labels (Eq. 3)."""
        logits = self.replays(images) @ self.nodes.T
        return logits if self.bias is None else logits + self.bias

    @property
    def bytes(self) -> int:
        """What it takes to keep it."""
        head = [self.nodes] if self.bias is None else [self.nodes, self.bias]
        return sum(tensor.nbytes for tensor in (*self.backbone.state_dict().values(), *head))

    def state_dict(self) -> dict[str, Any]:
        return {"backbone": self.backbone.state_dict(), "nodes": self.nodes, "bias": self.bias}


class Replays:
    """A backbone's pass, forward and backward, replayed as CUDA graphs: two launches in place of a thousand.

    Graphs are made for a shape of batch when that comes for the third time in a row; until then, for a task's last
    batch, and without a GPU, the pass is run step by step.
    """

    def __init__(self, backbone: Backbone, setting: Setting):
        self.backbone, self.setting = backbone, setting
        self.last: tuple[Any, ...] = ()
        self.row = 0
        self.graphs: dict[tuple[Any, ...], Graphs] = {}

    def __call__(self, images: Tensor, *mode: bool) -> Tensor:
        """Features of `images`; `mode` is whatever else the pass depends on."""
        if not images.is_cuda or not self.setting.cuda_graphs:
            return run_backbone(self.backbone, images, self.setting)
        kind = (tuple(images.shape), *mode)
        self.row = self.row + 1 if kind == self.last else 1
        self.last = kind
        if self.row >= 3 and kind not in self.graphs:
            self.graphs[kind] = Graphs(self.backbone, images, self.setting)
        if kind not in self.graphs:
            return run_backbone(self.backbone, images, self.setting)
        return _Replay.apply(self.graphs[kind], images, *self.backbone.parameters())


class Graphs:
    """The pass of a backbone over one shape of batch, recorded: images in, features out, gradients in and out.

    It is recorded from a copy that shares all memory with the backbone. The backbone's own parameters may be part of a
    step that is under way, which a recording must not touch.
    """

    def __init__(self, backbone: Backbone, images: Tensor, setting: Setting):
        self.twin = twin = copy.deepcopy(backbone)
        for module, original in zip(twin.modules(), backbone.modules(), strict=True):
            for name, parameter in module.named_parameters(recurse=False):
                parameter.data = original.get_parameter(name).data
            for name, _ in module.named_buffers(recurse=False):
                module.register_buffer(name, original.get_buffer(name), name not in module._non_persistent_buffers_set)
        learning = [parameter for parameter in twin.parameters() if parameter.requires_grad]
        self.images, self.passes = images.detach().clone(), 0
        before = [buffer.clone() for buffer in backbone.buffers()]
        aside = torch.cuda.Stream(images.device)
        aside.wait_stream(torch.cuda.current_stream(images.device))
        with torch.cuda.stream(aside):
            for _ in range(3):  # kernels are chosen and memory is got before anything is recorded
                features = run_backbone(twin, self.images, setting)
                if learning:
                    torch.autograd.grad(features, learning, torch.zeros_like(features), allow_unused=True)
        torch.cuda.current_stream(images.device).wait_stream(aside)
        for buffer, kept in zip(backbone.buffers(), before, strict=True):
            buffer.copy_(kept)
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward):
            self.features = run_backbone(twin, self.images, setting)
        self.gradient = torch.zeros_like(self.features)
        self.gradients: list[Tensor | None] = [None] * len(list(twin.parameters()))
        if learning:
            with torch.cuda.graph(self.backward, pool=self.forward.pool()):
                # the graph is retained: memory of activations that were let go would be used again within the
                # recording, and a second backward pass of the same images would find something else there
                graded = torch.autograd.grad(
                    self.features, learning, self.gradient, retain_graph=True, allow_unused=True
                )
                given = iter(graded)
                self.gradients = [next(given) if p.requires_grad else None for p in twin.parameters()]


class _Replay(torch.autograd.Function):
    """Replays graphs; what comes out is copied, as the next replay writes into the same memory."""

    @staticmethod
    def forward(ctx: Any, graphs: Graphs, images: Tensor, *parameters: Tensor) -> Tensor:
        graphs.passes += 1
        ctx.graphs, ctx.number = graphs, graphs.passes
        graphs.images.copy_(images)
        graphs.forward.replay()
        return graphs.features.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        graphs = ctx.graphs
        if ctx.number != graphs.passes:
            raise RuntimeError("another pass of this shape came between: its activations took the place of these")
        graphs.gradient.copy_(gradient)
        graphs.backward.replay()
        learning = [given for given in graphs.gradients if given is not None]
        copies = iter(torch._foreach_add(learning, 0))  # all of them in a few launches
        return None, None, *(None if given is None else next(copies) for given in graphs.gradients)


def run_backbone(backbone: Backbone, images: Tensor, setting: Setting) -> Tensor:
    context: contextlib.AbstractContextManager = contextlib.nullcontext()
    if setting.precision == "bf16":
        # without the cache, which a CUDA graph cannot use
        context = torch.autocast(setting.device.type, torch.bfloat16, cache_enabled=False)
    with context:
        return backbone(images.contiguous(memory_format=setting.memory_format)).float()
