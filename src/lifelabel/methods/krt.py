"""KRT: Knowledge Restore and Transfer (Dong et al., ICCV 2023), and KRT-R, the same with replay.

The network of the last task gives each new image pseudo labels of old classes, by a threshold that is searched, or by
one per class. A token and a classifier of each task are frozen when it ends, and a loss keeps the embeddings of old
tasks close to those of the last network. docs/methods/krt.md states what is from the release and what is our reading.

A probability of the old network at or above the threshold is a pseudo label. The search starts at the threshold before
it, at first 0.8, and moves in steps of 0.005 until the mean number of old labels per image is within 0.1 of the
expected one. Probabilities are kept in a histogram with bins of 0.005, so the search needs no stored images, and its
time does not depend on the number of images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lifelabel.errors import UserError
from lifelabel.methods.buffer import Replayed
from lifelabel.methods.er import EROptions
from lifelabel.methods.exemplars import ExemplarReplay
from lifelabel.methods.map_method import MapMethod
from lifelabel.methods.method import Batch
from lifelabel.nn import losses
from lifelabel.nn.heads import TokenHead
from lifelabel.nn.method_setting import Setting
from lifelabel.options import option

_HEADS = 8
"""Heads of the attention."""
_STEPS = 200
"""Thresholds are multiples of 1 / 200."""
_START, _TRIES, _TOLERANCE = 160, 100, 0.1


class PseudoLabels:
    """The thresholds of pseudo labels: the search for one, and the means of each class.

    `prevalence` is the expected share of images that show an old class. If it is None, the expected number of old
    labels per image follows from the labels so far. All numbers that change are tensors that are updated in place, and
    no value is read back from the device.

    >>> found = PseudoLabels()
    >>> labels = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    >>> found.count(labels, torch.ones(2, 2, dtype=torch.bool))  # the first task: 1.5 labels per image
    >>> found.begin_task(old=2, new=2)
    >>> found.expected.item()  # 1.5, times 2 of 4 classes
    0.75
    >>> threshold = found.search(torch.tensor([[0.9, 0.1], [0.7, 0.1], [0.6, 0.1], [0.5, 0.1]]))
    >>> round(threshold.item(), 3)  # three labels in four images
    0.6
    """

    def __init__(self, density: float = 1.0, prevalence: float | None = None, device: torch.device | str = "cpu"):
        self.density, self.prevalence = density, prevalence
        self.thresholds = (torch.arange(_STEPS + 1) / _STEPS).to(device)
        self.steps = torch.arange(_TRIES, device=device)
        self.start = torch.full((), _START, dtype=torch.int64, device=device)
        """The threshold at which the next search starts, in steps of 1 / 200."""
        self.histogram = torch.zeros(_STEPS + 2, dtype=torch.int64, device=device)
        """Probabilities of this task: entry k counts those that are at or above k of the thresholds."""
        self.task_images, self.labels, self.images = (
            torch.zeros((), dtype=torch.int64, device=device) for _ in range(3)
        )
        self.expected = torch.zeros((), device=device)
        self.sums = torch.zeros(2, 0, device=device)
        """Of the probabilities of each old class on the images of this task, and of their entropies."""

    def begin_task(self, old: int, new: int) -> None:
        """Begin a task with `new` classes after tasks with `old` ones. The labels so far are those that it expects."""
        if self.prevalence is None:
            self.expected.copy_(self.density * old / (old + new) * self.labels / self.images.clamp(min=1))
        else:
            self.expected.fill_(self.prevalence * old)
        self.histogram.zero_()
        self.task_images.zero_()
        self.sums = self.sums.new_zeros(2, old)

    def count(self, labels: Tensor, known: Tensor) -> None:
        """Count the labels of the images of a batch (B x classes, 0/1) where they are known."""
        self.labels += (labels * known).sum().long()
        self.images += len(labels)

    def search(self, probabilities: Tensor, new_images: bool = True) -> Tensor:
        """The threshold for the images of the task so far, with these probabilities (B x old) of the next images.

        Images that were counted before are not new.
        The search ends within the tolerance, or when the mean number has passed the expected one, or after 100 tries.
        The result is the try with the smallest error; of equal ones the first.
        """
        if new_images:
            bins = torch.bucketize(probabilities.flatten(), self.thresholds, right=True)
            self.histogram.scatter_add_(0, bins, torch.ones_like(bins))
            self.task_images += len(probabilities)
        at_least = self.histogram.flip(0).cumsum(0).flip(0)[1:]  # by threshold
        means = at_least / self.task_images
        above = means.take(self.start) > self.expected
        tries = (self.start + torch.where(above, self.steps, -self.steps)).clamp(0, _STEPS)
        errors = means[tries] - self.expected
        ended = (errors.abs() <= _TOLERANCE) | (errors.sign() != errors[0].sign())
        tried = ended.cumsum(0) - ended.long() == 0
        best = tries.take(errors.abs().masked_fill(~tried, torch.inf).argmin())
        if new_images:
            self.start.copy_(best)
        return self.thresholds.take(best)

    def means(self, probabilities: Tensor, new_images: bool = True) -> Tensor:
        """The mean probability and the mean entropy (2 x old) of each old class on the images of the task so far.

        `probabilities` (B x old) are those of the next images. Images that were counted before are not new.
        """
        if new_images:
            self.sums += torch.stack([probabilities, binary_entropy(probabilities)]).sum(1)
            self.task_images += len(probabilities)
        return self.sums / self.task_images

    @property
    def nbytes(self) -> int:
        """Size in memory of what is stored from task to task, in bytes."""
        return sum(tensor.nbytes for tensor in self.state_dict().values())

    def state_dict(self) -> dict[str, Any]:
        names = ("start", "histogram", "task_images", "labels", "images", "expected", "sums")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


def binary_entropy(probabilities: Tensor) -> Tensor:
    """-p ln p - (1 - p) ln(1 - p); 0 for 0 and 1.

    >>> binary_entropy(torch.tensor([0.0, 0.5]))
    tensor([0.0000, 0.6931])
    """
    return torch.special.entr(probabilities) + torch.special.entr(1 - probabilities)


@dataclass(frozen=True)
class _KRTOptions:
    loss: str = option("asl", "classification loss: asymmetric loss, or cross entropy", choices=("asl", "bce"))
    token_weight: float = option(
        100 / 64, "weight of the distance between old and new embeddings, before its factor sqrt(seen / new)", low=0
    )
    density: float = option(1.0, "factor of the expected number of old labels per image", low=0)
    prevalence: float | None = option(
        None,
        "expected share of images that show an old class, on average over classes, in place of the labels so far and "
        "the density; none: not given",
        low=0,
        high=1,
    )
    thresholds: str = option(
        "one",
        "thresholds of pseudo labels: one that is searched, or for each class its mean probability; with the gate, "
        "labels of more than mean entropy are unknown",
        choices=("one", "class", "class-gated"),
    )
    width: int = option(384, "width of the tokens, a multiple of 8", low=_HEADS, high=16_384)


class KRT(MapMethod):
    summary = "pseudo labels of old classes by a searched threshold, a frozen token per task, and a shared one"
    position = 180
    saved: ClassVar[tuple[str, ...]] = ("pseudo_labels",)
    Options: ClassVar[type] = _KRTOptions
    head: TokenHead
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {
        "token_weight": (0.15, 1.5, 15.0),
        "density": (0.5, 1.0, 2.0),
    }

    def __init__(self, setting: Setting, options: Any):
        if options.width % _HEADS:
            raise UserError(f"method.width={options.width} is no multiple of {_HEADS}, the number of heads: change it")
        super().__init__(setting, options, TokenHead(setting.backbone.dim, options.width, _HEADS))
        self.pseudo_labels = PseudoLabels(options.density, options.prevalence, setting.device)

    def begin_task(self, classes: Sequence[str]) -> None:
        self.pseudo_labels.begin_task(sum(self.sizes), len(classes))
        super().begin_task(classes)

    def learn(self, batch: Batch, replayed: Replayed | None = None) -> dict[str, Tensor]:
        batches = [batch]
        if replayed is not None:
            batches.append(Batch(replayed.images, replayed.labels, replayed.known, ()))
        images = torch.cat([each.images for each in batches])
        embeddings, logits = self._run(self.head, self.learner.train_maps(images))
        old_embeddings, old_logits = self._run_expert(images)
        targets = self._restore_labels(batches, old_logits)
        of_batches = zip(("cls", "replay"), logits.split([len(each.images) for each in batches]), targets, strict=False)
        parts = {name: self._classify(own, *target) for name, own, target in of_batches}
        if old_embeddings is not None:
            of_old_tasks = embeddings[:, : old_embeddings.shape[1]]
            parts["token"] = losses.token_distance(old_embeddings, of_old_tasks)
        weights = self.loss_weights()
        self.learner.step(torch.stack([weights[name] * part for name, part in parts.items()]).sum())
        return {name: part.detach() for name, part in parts.items()}

    def loss_weights(self) -> dict[str, float]:
        """The weight of each loss. That of `token` is beside a sum over the seen classes, or beside their mean."""
        seen = sum(self.sizes)
        token = self.options.token_weight * math.sqrt(seen / self.sizes[-1])
        return {"cls": 1.0, "token": token if self.setting.reduction == "sum" else token / seen}

    def _run(self, head: TokenHead, maps: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings of all tasks and the logits of all classes, in float32."""
        with self.setting.autocast():
            embeddings = head.embed(maps).float()
        return embeddings, head.classify(embeddings)  # a logit in bfloat16 would be too coarse for the threshold

    @torch.no_grad()
    def _run_expert(self, images: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """The embeddings of old tasks and the logits of old classes, of the network of the last task."""
        if self.expert is None:
            return None, None
        assert isinstance(self.expert.head, TokenHead)
        return self._run(self.expert.head, self.expert.maps(images))

    def _restore_labels(self, batches: Sequence[Batch], old_logits: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """Labels of all seen classes and the mask of known labels, for each batch.

        Where the label of an old class is unknown, the pseudo label of the old network takes its place. The thresholds
        are those of the images of the task, which are those of the first batch.
        """
        new = self.sizes[-1]
        targets = [each.of_task(new) for each in batches]
        if old_logits is not None:
            probabilities = old_logits.sigmoid().split([len(each.images) for each in batches])
            threshold, largest_entropy = self._thresholds(batches[0], probabilities[0])
            for index, (each, of_batch) in enumerate(zip(batches, probabilities, strict=True)):
                old, (labels, known) = each.with_known((of_batch >= threshold).float(), new), targets[index]
                certain = torch.ones_like(of_batch, dtype=torch.bool)
                if largest_entropy is not None:
                    certain = binary_entropy(of_batch) <= largest_entropy
                    if each.known.shape[1] > new:
                        certain = certain | each.known[:, :-new]
                targets[index] = torch.cat([old, labels], 1), torch.cat([certain, known], 1)
        if batches[0].first_pass:
            self.pseudo_labels.count(*targets[0])
        return targets

    def _thresholds(self, batch: Batch, probabilities: Tensor) -> tuple[Tensor, Tensor | None]:
        """The least probability of a pseudo label, and the largest entropy of one that is not unknown; None: any."""
        if self.options.thresholds == "one":
            given = batch.with_known(probabilities, self.sizes[-1])
            return self.pseudo_labels.search(given, batch.first_pass), None
        probability, entropy = self.pseudo_labels.means(probabilities, batch.first_pass)
        return probability, entropy if self.options.thresholds == "class-gated" else None

    def _classify(self, logits: Tensor, labels: Tensor, known: Tensor) -> Tensor:
        loss = losses.asymmetric if self.options.loss == "asl" else losses.classification
        return loss(logits, labels, self.setting.reduction, known)


@dataclass(frozen=True)
class _KRTReplayOptions(_KRTOptions, EROptions):
    """The options of KRT, and those of ER."""


class KRTReplay(ExemplarReplay, KRT):
    summary = "KRT, and each batch with exemplars of each class, chosen by herding"
    name = "krt-r"
    position = 190
    Options = _KRTReplayOptions

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        parts = self.recorder(self.learn, batch, self.recall(self.sample(batch)), mode=batch.first_pass)
        self.store(batch)
        return parts

    def end_task(self) -> None:
        super().end_task()
        self.herd(self.learner.eval_features)

    def loss_weights(self) -> dict[str, float]:
        return {**super().loss_weights(), "replay": self.options.replay_weight}
