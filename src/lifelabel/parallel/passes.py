"""Passes of the network that are divided among the processes of a run.

Every process has the whole batch, and takes the same steps with the same random numbers. Only the forward and backward
passes of the network are divided: each process computes the features of its rows of the batch, and the features of all
rows are gathered. So a method needs no code for several processes, and its losses, counts, sums and buffers do not
depend on their number.

The gradient of the gathered rows is in each process that of its own rows, times the number of processes. The mean of a
gradient over the processes, `Group.average`, is then the gradient of the loss over the whole batch, as in torch's
DistributedDataParallel. That class is not used: several methods take two backward passes per step, or change gradients.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lifelabel.parallel.group import Group


def run_divided(
    group: Group, forward: Callable[[Tensor], Tensor], images: Tensor, network: nn.Module | None = None
) -> Tensor:
    """`forward(images)`, with the rows divided among the processes.

    With `network` in train mode, its batch norm uses the statistics of the whole batch, and its dropout draws other
    numbers in each process. The generators of torch stay equal in all processes.
    """
    if not group.divides:
        return forward(images)
    rows = images[group.rows(len(images))]
    if network is None or not network.training:
        return _GatherRows.apply(forward(rows), len(images), group)
    with _WholeBatchNorm(group), _own_numbers(group, images.device) if _draws(network) else contextlib.nullcontext():
        return _GatherRows.apply(forward(rows), len(images), group)


def _draws(network: nn.Module) -> bool:
    """Whether a network draws random numbers in train mode: dropout, or stochastic depth by its usual names."""
    kinds = (type(module).__name__ for module in network.modules())
    return any("Drop" in kind or "StochasticDepth" in kind for kind in kinds)


@contextlib.contextmanager
def _own_numbers(group: Group, device: torch.device) -> Iterator[None]:
    """Random numbers of this process, from a seed that all draw alike. Afterwards the generators are equal."""
    seed = int(torch.randint(1 << 62, ())) + group.rank
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class _GatherRows(torch.autograd.Function):
    """The rows of all processes. The gradient of the own rows is multiplied by the number of processes: see above."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, count: int, group: Group) -> Tensor:
        ctx.rows, ctx.size = group.rows(count), group.size
        return group.gather_rows(own, count)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return gradient[ctx.rows] * ctx.size, None, None


class _WholeBatchNorm(TorchFunctionMode):
    """Inside this mode, batch norm in train mode uses the mean and variance over the rows of all processes.

    It replaces the function that all batch-norm modules call. So modules and their state dicts stay as they are.
    """

    def __init__(self, group: Group):
        super().__init__()
        self.group = group

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _batch_norm(
        self, x: Tensor, mean: Tensor | None, var: Tensor | None, weight: Tensor | None = None,
        bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        if not training:
            return F.batch_norm(x, mean, var, weight, bias, False, momentum, eps)
        weight = x.new_ones(x.shape[1], dtype=torch.float32) if weight is None else weight
        bias = torch.zeros_like(weight) if bias is None else bias
        if x.is_cuda:  # the layer of torch, which the CPU does not have
            tensors = {"weight": weight, "bias": bias, "running_mean": mean, "running_var": var}
            given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
            return functional_call(_sync_batch_norm(x.shape[1], eps, momentum, mean is not None), given, (x,))
        return _BatchNorm.apply(x, weight, bias, mean, var, momentum, eps)


@functools.cache
def _sync_batch_norm(channels: int, eps: float, momentum: float, running: bool) -> nn.SyncBatchNorm:
    """A layer without memory: `functional_call` gives it the tensors of the layer that it replaces."""
    return nn.SyncBatchNorm(channels, eps, momentum, track_running_stats=running, device="meta")


class _BatchNorm(torch.autograd.Function):
    """Batch norm over the rows of all processes, on the CPU."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
        momentum: float, eps: float,
    ) -> Tensor:  # fmt: skip
        axes = [axis for axis in range(x.ndim) if axis != 1]
        own = torch.zeros(3, x.shape[1], dtype=torch.float64)
        if x.numel():
            own[1], own[0] = torch.var_mean(x.double(), axes, correction=0)
            own[2] = x.numel() / x.shape[1]
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        means, variances, counts = torch.stack(parts).unbind(1)
        count = counts.sum(0)
        mean = (counts * means).sum(0) / count
        var = (counts * (variances + (means - mean).square())).sum(0) / count
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean.to(running_mean), momentum)
            running_var.lerp_((var * count / (count - 1)).to(running_var), momentum)
        mean, var = mean.to(weight), var.to(weight)
        ctx.save_for_backward(x, weight, mean, (var + eps).rsqrt(), count.to(weight))
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, mean, inverse, count = ctx.saved_tensors
        axes = [axis for axis in range(x.ndim) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
        normal = (x - mean.view(shape)) * inverse.view(shape)
        own = torch.stack([gradient.sum(axes), (gradient * normal).sum(axes)])
        sums = own.clone()
        dist.all_reduce(sums)
        of_gradient, of_product = (sums / count).unbind()
        inner = gradient - of_gradient.view(shape) - normal * of_product.view(shape)
        return inner * (weight * inverse).view(shape), own[1], own[0], None, None, None, None
