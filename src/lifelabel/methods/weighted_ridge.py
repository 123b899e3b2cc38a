"""Weighted ridge: a ridge regression per task on frozen features, in closed form.

    W_t = (alpha G + (1 - alpha) G_t + gamma I)^-1 b_t

An image of another task is not a negative example of the classes of task t, because it is not labelled for them. It
counts with the weight alpha. No image is stored, and nothing is forgotten. For a given gamma the order of the tasks
matters only through the statistics of the first one. docs/methods/weighted-ridge.md documents every option.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lifelabel.methods.method import Batch, Method
from lifelabel.methods.ridge import Regression, TaskSums, choose_basis
from lifelabel.methods.warm_up import WarmUp
from lifelabel.nn.frozen_features import PARTS, FrozenFeatures, PartFeatures
from lifelabel.nn.graph import CalibratedACM, LabelRelations
from lifelabel.nn.inference import Classifier, InferenceNetwork
from lifelabel.nn.method_setting import Setting
from lifelabel.nn.provenance import SCRATCH
from lifelabel.options import option

RIDGES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""The strengths of regularisation that are compared."""
_MORE_THAN_CHOSEN = 3.0
"""The comparison is on images of a task's own. For images of other tasks, which are less like the ones that were
learned, a stronger regularisation is better: this factor measured best on held-out training photographs."""


@dataclass(frozen=True)
class _WeightedRidgeOptions:
    alpha: float = option(
        0.2, "α, weight of the images of other tasks: 1 counts them as negatives, 0 leaves them out", low=0, high=1
    )
    ridge: float | None = option(
        None,
        "γ, relative to the mean diagonal of the matrix; none: chosen by generalised cross-validation",
        above=0,
    )
    directions: int | None = option(
        1024, "main directions of the first task's features that are kept; none: all features", low=1, high=100_000
    )
    features: tuple[str, ...] = option(
        PARTS, "parts of the features: the last map, the last stages, the ImageNet head at every place", choices=PARTS
    )
    views: int = option(2, "2: the features of an image and its mirror image; 1: of the image", low=1, high=2)
    context: float = option(0.3, "weight of label relations in the refinement of scores; 0: no refinement", low=0)
    storage: str = option(
        "float64", "type of the matrices of past tasks: float32 halves their memory", choices=("float64", "float32")
    )
    warm_up: int | None = option(
        None,
        "images of the first task that train the backbone by gradient before it is frozen; none: half of them if the "
        "backbone has no pretrained weights, else 0",
        low=0,
        high=10**9,
    )


class WeightedRidge(Method):
    summary = "a closed form per task on frozen features; the default for photographs (mAP 61.9; l3a 57.1, agcn 46.6)"
    position = 150
    Options = _WeightedRidgeOptions
    float64 = True
    saved = ("backbone", "warm_up", "sums", "acm", "relations", "basis", "weights", "slope", "shift", "errors")
    validates = True
    default_for_photographs = True
    # alpha is not searched: the right value grows as images get fewer, and a search has few
    shared_options: ClassVar[tuple[str, ...]] = ("image_size",)

    def __init__(self, setting: Setting, options: _WeightedRidgeOptions):
        super().__init__(setting, options)
        self.backbone = setting.place_backbone()
        warm_up = options.warm_up
        if warm_up is None:
            scratch = all(part.provenance == SCRATCH for part in self.backbone.parts)
            # it uses whole batches: a first task of one or two batches would have no images left
            needed = scratch and setting.first_task_images > 2 * setting.batch_size
            warm_up = setting.first_task_images // 2 if needed else 0
        self.warm_up = WarmUp(setting, warm_up)
        self.extract = FrozenFeatures(setting, options.features, options.views)
        storage = torch.float32 if options.storage == "float32" else torch.float64
        self.sums = TaskSums(self.extract.dim + 1, setting.device, storage)
        zeros = self.sums.total.new_zeros
        self.basis = zeros(0, 0)
        """The map from features to the directions that are kept (dim + 1 x kept + 1). Empty in the first task."""
        self.weights, self.slope, self.shift = zeros(0, 0), zeros(0), zeros(0)
        """The regression of all tasks that have ended, and the logit of each class: slope * score + shift."""
        self.errors = zeros(0, len(RIDGES))
        """For each task, the errors of the candidates for `ridge`."""
        self.acm = CalibratedACM(setting.device, over_stream=True)
        self.relations = LabelRelations(options.context, negative=False, device=setting.device)
        self.log_lift: Tensor | None = None
        """Cached between two tasks."""

    @property
    def fixed_features(self) -> bool:
        return bool(len(self.basis))

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        self.log_lift = None
        self.sums.begin_task(len(classes))
        self.relations.freeze(self.acm)
        self.acm.begin_task(len(classes))
        self.warm_up.begin_task(classes)

    @torch.no_grad()
    def observe(self, batch: Batch) -> dict[str, Tensor]:
        """Add a batch to the sums. There is no loss, except in the warm-up."""
        if not self.warm_up.done:
            with torch.enable_grad():
                return self.warm_up.observe(batch)
        if not batch.first_pass:  # the sums and the matrix have each image once
            return {}
        phi = self.features(batch.images)
        self.sums.add(phi, batch.labels, batch.known)
        new = self.sizes[-1]
        labels, known = batch.of_task(new)
        soft_labels = batch.with_known(self.calibrated(phi).sigmoid(), new) if len(self.tasks) > 1 else None
        self.acm.update(labels, soft_labels, known)
        return {}

    @torch.no_grad()
    def end_task(self) -> None:
        """Solve the systems of all tasks so far."""
        super().end_task()
        self.warm_up.check_images_left(self.sums.total[-1, -1].item())
        if len(self.tasks) == 1:
            self.basis = choose_basis(self.sums.total, self.extract.standardised, self.options.directions)
            self.sums.change_basis(self.basis)
        if self.options.ridge is None:
            regression = self._regression(len(self.tasks) - 1)
            errors = torch.stack([regression.solve(ridge).error for ridge in RIDGES])
            # relative, so that tasks of different difficulty are equal
            self.errors = torch.cat([self.errors, (errors / errors.min())[None]])
        self.solve(self.ridge)

    @property
    def ridge(self) -> float:
        """The strength of regularisation: the option, or 3 times the candidate with the smallest errors so far."""
        return self.options.ridge or _MORE_THAN_CHOSEN * RIDGES[int(self.errors.mean(0).argmin())]

    def solve(self, ridge: float) -> None:
        """Solve the systems of all tasks with a strength of regularisation. The last task must have ended."""
        solutions = [self._regression(task).solve(ridge) for task in range(len(self.tasks))]
        slopes, shifts = zip(*(solution.calibrate() for solution in solutions), strict=True)
        self.weights = torch.cat([solution.weights for solution in solutions], 1)
        self.slope, self.shift = torch.cat(slopes), torch.cat(shifts)

    @torch.no_grad()
    def validate(self, features: Tensor, labels: Tensor, known: Tensor) -> None:
        """Choose the strength of regularisation by the squared error of images that are not learned."""
        used = known.all(1)
        phi, y = features[used].double(), labels[used].double()
        if self.options.ridge is not None or not y.any():
            return
        regression = self._regression(len(self.tasks) - 1)
        candidates = (regression.solve(_MORE_THAN_CHOSEN * ridge).weights for ridge in RIDGES)
        errors = torch.stack([(phi @ weights - y).square().mean() for weights in candidates])
        self.errors[-1] = errors / errors.min()  # in place of the errors of left-out images
        self.solve(self.ridge)

    def _regression(self, task: int) -> Regression:
        return Regression(self.sums.total, *self.sums.of_task(task), self.options.alpha)

    def features(self, images: Tensor) -> Tensor:
        """The features of images and a 1: those of the backbone in the first task, then their main directions."""
        if not self.warm_up.done:  # the network of `extract` is made once, and must not be made before it is trained
            return images.new_zeros(len(images), self.extract.dim + 1)
        found = self.extract(images).double()
        phi = torch.cat([found, found.new_ones(len(found), 1)], 1)
        return (phi @ self.basis).float() if len(self.basis) else phi

    def calibrated(self, features: Tensor) -> Tensor:
        """Logits of the classes of all tasks that have ended, without label relations."""
        return ((features.double() @ self.weights) * self.slope + self.shift).float()

    def logits(self, features: Tensor, num_classes: int | None = None) -> Tensor:
        ended = self.calibrated(features) if len(self.weights) == features.shape[1] else features[:, :0].float()
        new = sum(self.sizes) - ended.shape[1]  # a task that has not ended: nothing is known
        logits = torch.cat([ended, ended.new_zeros(len(ended), new)], 1)[:, :num_classes]
        if not self.options.context or new:
            return logits
        if self.log_lift is None:
            self.log_lift = self.relations.log_lift(self.acm)
        return self.relations.refine_logits(logits, self.log_lift)

    def network(self) -> InferenceNetwork:
        folded = (self.basis @ self.weights) * self.slope  # of the features and a 1
        log_lift = self.relations.log_lift(self.acm) if self.options.context else None
        features = PartFeatures(self.backbone, self.options.features, self.options.views)
        classifier = Classifier(folded[:-1].T, folded[-1] + self.shift, None, log_lift, self.options.context)
        return InferenceNetwork(features.to(self.setting.device), classifier)

    def matrix(self) -> np.ndarray:
        return self.acm.matrix().cpu().numpy().copy()

    def saved_names(self) -> list[str]:
        """Without a warm-up, the backbone is as its weights or its seed made it, and is not saved."""
        return [name for name in super().saved_names() if name != "backbone" or self.warm_up.images]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for names in state["tasks"]:
            super().begin_task(names)  # the sums of all tasks are in the state
        self.warm_up.images = state["warm_up"]["images"]
        if state["warm_up"]["learner"]:
            self.warm_up.begin_task(self.tasks[0])
        self.load_saved(state)
