"""Training by gradient: a backbone with a head and an optimizer, and a linear head that grows with each task."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from lifelabel.nn.method_setting import Setting, run_backbone, run_maps


class Learner:
    """A backbone and a head that are trained together.

    They have different learning rates. Each task has a new Adam optimizer. The option `batch_norm` states whether the
    statistics of batch norm change in `train_features`.
    """

    def __init__(self, head: nn.Module, setting: Setting):
        self.setting = setting
        self.backbone = setting.place_backbone()
        self.head = head.to(setting.device)
        self.optimizer: torch.optim.Optimizer | None = None
        self.frozen = self.freeze_statistics = False

    def begin_task(self, first_task: bool) -> None:
        """Create a new Adam optimizer with the learning rates of the first or of a later task."""
        s = self.setting
        self.freeze_statistics = s.batch_norm == "frozen" or (s.batch_norm == "first-task" and not first_task)
        groups = [
            {"params": list(self.backbone.parameters()), "lr": s.backbone_lr if first_task else s.later_backbone_lr},
            {"params": list(self.head.parameters()), "lr": s.lr},
        ]
        on_gpu = s.device.type == "cuda"  # a recorded step needs the step counter of Adam on the device
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.999), eps=s.adam_eps, fused=True, capturable=on_gpu)

    def freeze(self) -> None:
        """Freeze the backbone: no gradients, and always in eval mode."""
        self.frozen = True
        self.backbone.requires_grad_(False)

    def train_features(self, images: Tensor) -> Tensor:
        """Features (float32) in train mode: batch norm uses the batch, unless its statistics are frozen."""
        self._set_training(len(images))
        return run_backbone(self.backbone, images, self.setting)

    def eval_features(self, images: Tensor) -> Tensor:
        """Features (float32) in eval mode: no statistics change, with gradients enabled or not."""
        self.backbone.eval()
        return run_backbone(self.backbone, images, self.setting)

    def train_maps(self, images: Tensor) -> Tensor:
        """The last feature maps (B x dim x h x w, float32) in train mode, as in `train_features`."""
        self._set_training(len(images))
        return run_maps(self.backbone, images, self.setting)

    def eval_maps(self, images: Tensor) -> Tensor:
        """The last feature maps (B x dim x h x w, float32) in eval mode."""
        self.backbone.eval()
        return run_maps(self.backbone, images, self.setting)

    def _set_training(self, images: int) -> None:
        if self.frozen:
            self.backbone.eval()
        else:
            # batch statistics need two values per channel, and the last feature map of one image may have one pixel
            self.backbone.set_training(freeze_statistics=self.freeze_statistics or images == 1)

    def step(self, loss: Tensor) -> None:
        """One step of the optimizer on the gradient of `loss`."""
        assert self.optimizer is not None, "call begin_task first"
        loss.backward()
        if self.setting.group.size > 1:
            with_gradient = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
            means = self.setting.group.average([p.grad for p in with_gradient])
            torch._foreach_copy_([p.grad for p in with_gradient], means)
        self.optimizer.step()
        # freed now, gradients do not divide the memory in which the next step puts its activations
        self.optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict() if self.optimizer else None
        return {"backbone": self.backbone.state_dict(), "head": self.head.state_dict(), "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. The head must have grown to its size in the state, and the same task must have begun."""
        self.backbone.load_state_dict(state["backbone"])
        self.head.load_state_dict(state["head"])
        if self.optimizer is not None:
            # the learning rates may have been edited before the run resumes, and the device may be another one
            current = [{k: group[k] for k in ("lr", "eps", "capturable")} for group in self.optimizer.param_groups]
            self.optimizer.load_state_dict(state["optimizer"])
            for group, values in zip(self.optimizer.param_groups, current, strict=True):
                group.update(values)
            # the fused Adam needs its moments in the memory format of the parameter
            for parameter, moments in self.optimizer.state.items():
                for name in ("exp_avg", "exp_avg_sq"):
                    moments[name] = torch.empty_like(parameter).copy_(moments[name])


class LinearHead(nn.Module):
    """A linear classifier that gets new rows with each task. Growing does not change the old rows."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()

    @property
    def rows_so_far(self) -> int:
        return sum(len(bias) for bias in self.biases)

    def grow(self, new: int, device: torch.device) -> None:
        """Add `new` classes."""
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
