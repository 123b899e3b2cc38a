"""A plug-in of lifelabel: a method, a stream, a backbone and a metric."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from lifelabel import BACKBONES, METHODS, METRICS, STREAMS, FineTuning, backbones, losses, option, streams
from lifelabel.metrics import Metric


@dataclass(frozen=True)
class AnchorOptions:
    strength: float = option(0.01, "weight of the squared distance to the backbone of the last task", low=0)


@METHODS.register("anchor")
class Anchor(FineTuning):
    summary = "fine-tuning with a penalty on changes of the backbone since the last task"
    Options = AnchorOptions
    saved = ("anchor",)
    search_space: ClassVar = {"strength": (0.001, 0.01, 0.1)}

    def __init__(self, setting, options):
        super().__init__(setting, options)
        self.anchor = self.weights().detach()

    def weights(self):
        return torch.cat([weight.flatten() for weight in self.learner.backbone.parameters()])

    def begin_task(self, classes):
        super().begin_task(classes)
        self.anchor = self.weights().detach()

    def learn(self, batch):
        logits = self.train_logits(batch.images)[:, -len(batch.classes) :]
        loss = losses.classification(logits, batch.labels, self.setting.reduction, batch.known)
        change = (self.weights() - self.anchor).square().sum()
        self.learner.step(loss + self.options.strength * change if len(self.tasks) > 1 else loss)
        return {"cls": loss.detach(), "change": change.detach()}


@dataclass(frozen=True)
class FewScenesOptions:
    images: int = option(40, "number of training images", low=4)
    tasks: int = option(2, "number of tasks", low=1, flag="Data")


def few_scenes(options):
    scenes = {"classes": 4, "tasks": options.tasks, "train_images": options.images, "test_images": 20, "size": 32}
    return replace(streams.build("scenes", scenes), name="few-scenes")


FEW_SCENES = streams.Source("scenes with four classes", FewScenesOptions, few_scenes, photographs=False)
STREAMS.register("few-scenes", FEW_SCENES)


@BACKBONES.register("one-layer")
def one_layer(pool, weights):
    """One convolution, 32 features, trained from scratch."""
    return backbones.Backbone(nn.Sequential(nn.Conv2d(3, 32, 8, 4), nn.ReLU()), 32, pool)


def top_1(scored):
    return scored.labels.gather(1, scored.probabilities.argmax(1, keepdim=True)).float().mean().item()


TOP_1 = METRICS.register("top_1", Metric("lifelabel-example", "share of images whose highest score is a label", top_1))
