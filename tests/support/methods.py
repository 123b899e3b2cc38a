"""Shared by the tests of methods: small batches, networks in float64, losses computed by loops."""

import copy
import dataclasses
import functools
import io

import numpy as np
import pytest
import torch
from PIL import Image

from lifelabel.config.config import Config
from lifelabel.config.run_options import RunOptions
from lifelabel.engine.setup import make_setting
from lifelabel.methods import METHODS, Batch, HostBatch
from lifelabel.nn import backbones
from lifelabel.parallel.group import ALONE

TASKS = [("sky", "sea"), ("boat", "fish", "sun"), ("tree", "house")]
NORMALIZE = backbones.build("tiny", "max", "none").normalize
SMALL = {
    "warm_up": 6,
    "projection": 32,
    "directions": 32,
    "hidden": 32,
    "width": 16,
    "buffer_images": 10,
    "perturbations": 2,
}
"""Values that keep tests fast, for every method that declares an option of this name."""


def small_options(name):
    """The options of a method that keep tests fast."""
    declared = {field.name for field in dataclasses.fields(METHODS[name].Options)}
    return {option: value for option, value in SMALL.items() if option in declared}


SHARED = {"reduction": "mean", "augment": "none", "batch_norm": "running", "lr": 1e-3, "backbone_lr": 1e-3}


def make(method, device="cpu", group=ALONE, **options):
    """A method with seed 0. Options of the run, such as `lr`, and of the method are given together."""
    torch.manual_seed(0)
    names = {field.name for field in dataclasses.fields(RunOptions)}
    shared = {**SHARED, **{name: options.pop(name) for name in names & options.keys()}}
    config = Config.make({"method": method, **shared, "method_options": options})
    embed = lambda labels: torch.zeros(len(labels), 4, device=device)  # noqa: E731
    setting = make_setting(config, embed, torch.device(device), group=group)
    return METHODS[method](setting, config.method_options)


def batch(method, task, seed, count=4, labels=None, hidden=0.2):
    """A batch of a task as the engine makes it, with some unknown labels."""
    rng = np.random.default_rng([task, seed])
    pixels = torch.from_numpy(rng.integers(0, 256, (count, 6, 6, 3), np.uint8).repeat(4, 1).repeat(4, 2))
    known = rng.random((count, len(TASKS[task]))) >= hidden
    drawn = rng.random(known.shape) < 0.5
    labels = (drawn if labels is None else labels) & known
    device = method.setting.device
    y, mask = torch.from_numpy(labels).float().to(device), torch.from_numpy(known).to(device)
    return Batch(method.setting.backbone.normalize(pixels), y, mask, TASKS[task], HostBatch(pixels, labels, known))


def with_old(given, labels, known):
    """The same batch with labels of the old classes (one for each, for all images)."""
    count = len(given.images)
    old, mask = (np.tile(np.array(values, bool), (count, 1)) for values in (labels, known))
    host = HostBatch(given.host.pixels, np.hstack([old & mask, given.host.labels]), np.hstack([mask, given.host.known]))
    tensors = torch.from_numpy(host.labels).float(), torch.from_numpy(host.known)
    return Batch(given.images, *tensors, (*TASKS[0], *given.classes), host)


def small(name, **more):
    """A method with small options, and an embedding for each label word."""
    method = make(name, **{"augment": "flip", "batch_norm": "first-task", **small_options(name), **more})
    generator = torch.Generator().manual_seed(0)
    words = {each: torch.randn(4, generator=generator) for names in TASKS for each in names}
    embed = lambda names: torch.stack([words[each] for each in names]).to(method.setting.device)  # noqa: E731
    method.setting = dataclasses.replace(method.setting, embed=embed)
    return method


def begin(method, classes, batches):
    """Begin a task as the engine does."""
    method.begin_task(classes)
    if method.counts_labels:
        labels = np.concatenate([each.host.labels for each in batches]).astype(np.int64)
        method.count_labels(labels.T @ labels)


def calls_of(method, tasks=3, steps=4):
    """All calls of the engine, in order. One batch of each task has one image only."""
    calls = []
    for task in range(tasks):
        given = [batch(method, task, step, count=1 if step == 2 else 4) for step in range(steps)]
        calls.append(functools.partial(begin, method, TASKS[task], given))
        calls += [functools.partial(method.observe, each) for each in given]
        calls.append(method.end_task)
    return calls


def learned(method, tasks=1, steps=2):
    """The method after some tasks."""
    for task in range(tasks):
        method.begin_task(TASKS[task])
        for step in range(steps):
            method.observe(batch(method, task, step))
        method.end_task()
    return method


def learn_first_task(method, steps=2):
    """The method after the first task, at the begin of the second."""
    learned(method, 1, steps).begin_task(TASKS[1])
    return method


class Float64Network:
    """The network of a method as it is now, in float64."""

    def __init__(self, method, frozen=False):
        self.backbone, self.head = (part.double() for part in copy.deepcopy((method.learner.backbone, method.head)))
        self.backbone.train(not frozen)

    def logits(self, images):
        return self.head(self.backbone(images.double()))

    def gradient(self, loss):
        weights = weights_of(self)
        parts = torch.autograd.grad(loss, weights, allow_unused=True)
        return flat([torch.zeros_like(p) if g is None else g for p, g in zip(weights, parts, strict=True)])


class Float64MapNetwork(Float64Network):
    """The same for a head on the feature map."""

    def maps(self, images):
        return self.backbone.body(images.double())

    def logits(self, images):
        return self.head(self.maps(images))


def flat(tensors):
    return np.concatenate([t.detach().double().numpy().ravel() for t in tensors])


def weights_of(network):
    """The weights of a method, or of its network in float64."""
    backbone = network.backbone if isinstance(network, Float64Network) else network.learner.backbone
    return [*backbone.parameters(), *network.head.parameters()]


def assert_step(method, given, network, parts, loss, rel=1e-4):
    """A step has these losses, and the gradient of their weighted sum `loss`, of the network before the step."""
    gradient = network.gradient(loss)
    found = {name: part.item() for name, part in method.observe(given).items()}
    assert found == pytest.approx({name: part.item() for name, part in parts.items()}, rel=rel)
    assert_gradient(weights_of(method), gradient)


def assert_gradient(weights, expected):
    """The gradient of the last step is the expected one, by the norm of the difference for each tensor of weights.

    Single elements can differ more: rounding moves an activation to the other side of zero, where ReLU has another
    slope, and which one depends on the CPU.
    """
    start, smallest = 0, 1e-6 * np.linalg.norm(expected)
    for weight in weights:
        part = expected[start : start + weight.numel()]
        difference = np.linalg.norm(flat([weight.grad]) - part)
        assert difference <= 5e-3 * np.linalg.norm(part) + smallest, (start, tuple(weight.shape))
        start += len(part)
    assert start == len(expected)


def images_of(items):
    """Stored images as network input, decoded by Pillow."""
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(item.jpeg)).convert("RGB")) for item in items])
    return torch.from_numpy((pixels.transpose(0, 3, 1, 2) / 255.0 - 0.5) / 0.25)


def cross_entropy(logits, entries, reduction):
    """`entries`: for each image, {column: target} of its known labels and soft labels."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row, image in enumerate(entries):
        for column, target in image.items():
            p = torch.sigmoid(logits[row, column])
            total = total - target * torch.log(p) - (1 - target) * torch.log(1 - p)
            count += 1
    return total / (len(entries) if reduction == "sum" else count)


def entries_of_batch(given, offset):
    known, labels = given.known.tolist(), given.labels.tolist()
    return [{offset + k: labels[i][k] for k in range(len(known[i])) if known[i][k]} for i in range(len(known))]


def entries_of(items):
    return [{item.offset + k: float(y) for k, y in enumerate(item.labels) if item.known[k]} for item in items]


def soft_entries(targets):
    """Targets of the first columns."""
    return [dict(enumerate(row)) for row in targets.tolist()]


def noisy_host(rng, frequency, images, size=8):
    """Images with a random amount of noise, so that their JPEGs have many sizes, and labels with these frequencies."""
    shape = images, len(frequency)
    noise = rng.integers(0, 256, (images, size, size, 3)) * rng.random((images, 1, 1, 1))
    known = rng.random(shape) < 0.8
    labels = (rng.random(shape) < frequency) & known
    return HostBatch(torch.from_numpy(noise.astype(np.uint8)), labels, known)


def same(a, b):
    """Whether two states are equal to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a.dtype == b.dtype and torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
