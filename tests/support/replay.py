"""Shared by the tests of replay methods: batches in host memory, a network in float64, losses computed by loops."""

import copy
import io
import math

import numpy as np
import torch
from PIL import Image

from lifelabel.config.config import Config
from lifelabel.engine.setup import make_setting
from lifelabel.methods import METHODS, Batch, HostBatch
from support.no_waiting import no_waiting

TASKS = [("sky", "sea"), ("boat", "fish", "sun"), ("tree", "house")]
SMALL_OPTIONS = {"l3a": {"warm_up": 4, "projection": 32}, "weighted-ridge": {"directions": 32}}
"""Options of methods whose defaults take seconds, by name."""


def make(method, reduction="mean", augment="none", batch_norm="running", device="cpu", **options):
    torch.manual_seed(0)
    shared = {"reduction": reduction, "augment": augment, "batch_norm": batch_norm, "lr": 1e-3, "backbone_lr": 1e-3}
    config = Config.make({"method": method, **shared, "method_options": options})
    setting = make_setting(config, lambda labels: torch.zeros(len(labels), 4, device=device), torch.device(device))
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


def learn_first_task(method, steps=2):
    method.begin_task(TASKS[0])
    for step in range(steps):
        method.observe(batch(method, 0, step))
    method.end_task()
    method.begin_task(TASKS[1])
    return method


def learned(method, tasks=1):
    for task in range(tasks):
        method.begin_task(TASKS[task])
        for step in range(2):
            method.observe(batch(method, task, step))
        method.end_task()
    return method


class Float64Network:
    """The network of a method before a step, in float64."""

    def __init__(self, method, frozen=False):
        self.backbone = copy.deepcopy(method.learner.backbone).double()
        self.head = copy.deepcopy(method.head).double()
        self.backbone.train(not frozen)

    def logits(self, images):
        w, b = torch.cat(list(self.head.weights)), torch.cat(list(self.head.biases))
        return self.backbone(images.double()) @ w.T + b

    def parameters(self):
        return [*self.backbone.parameters(), *self.head.parameters()]

    def gradient(self, loss):
        parts = torch.autograd.grad(loss, self.parameters(), retain_graph=True, allow_unused=True)
        return flat([torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters(), parts, strict=True)])


class Float64MapNetwork:
    """The network of a method with a head on the feature map, as it is now, in float64."""

    def __init__(self, method, train):
        self.backbone, self.head = copy.deepcopy((method.learner.backbone, method.head))
        self.backbone.double().train(train)
        self.head.double()
        self.parameters = [*self.backbone.parameters(), *self.head.parameters()]

    def maps(self, images):
        return self.backbone.body(images.double())


def flat(tensors):
    return np.concatenate([t.detach().double().numpy().ravel() for t in tensors])


def assert_unknown_labels_are_not_used(learned):
    """`learned` makes a method that has learned the first task. The batch has one image."""
    states = []
    for unknown in (0, 1):
        method = learned()
        method.begin_task(TASKS[1])
        given = batch(method, 1, 0, count=1, hidden=0.7)
        assert not given.known.all()
        given.labels[~given.known] = unknown
        method.observe(given)
        states.append(method.state_dict())
    assert_same_bits(*states)


def weights_of(method):
    return [*method.learner.backbone.parameters(), *method.head.parameters()]


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
    """`entries`: for each image, {column: label} of its known labels."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row, image in enumerate(entries):
        for column, label in image.items():
            p = torch.sigmoid(logits[row, column])
            total = total - (torch.log(p) if label else torch.log(1 - p))
            count += 1
    return total / (len(entries) if reduction == "sum" else count)


def entries_of_batch(given, offset):
    known, labels = given.known.tolist(), given.labels.tolist()
    return [{offset + k: labels[i][k] for k in range(len(known[i])) if known[i][k]} for i in range(len(known))]


def entries_of(items):
    return [{item.offset + k: y for k, y in enumerate(item.labels) if item.known[k]} for item in items]


def assert_resumes_exactly(name, tmp_path, **options):
    """A method that is saved in the middle of the second task and loaded again takes the same steps, bit by bit."""
    options = {"augment": "flip", "batch_norm": "first-task", "buffer_images": 10, **options}
    straight = learn_first_task(make(name, **options), steps=4)
    straight.observe(batch(straight, 1, 0))
    torch.save({"method": straight.state_dict(), "random": torch.get_rng_state()}, tmp_path / "c.pt")
    state = torch.load(tmp_path / "c.pt", weights_only=True)
    assert straight.footprint().images == 10 and straight.footprint().bytes > 0

    def rest(method):
        parts = [method.observe(batch(method, 1, step)) for step in (1, 2, 3)]
        method.end_task()
        method.begin_task(TASKS[2])
        return [*parts, method.observe(batch(method, 2, 0, count=1)), method.observe(batch(method, 2, 1))]

    expected = rest(straight)
    resumed = make(name, **options)
    resumed.load_state_dict(state["method"])
    torch.set_rng_state(state["random"])
    assert_same_bits(rest(resumed), expected)
    assert_same_bits(resumed.state_dict(), straight.state_dict())
    assert resumed.footprint() == straight.footprint()


def assert_same_bits(one, two):
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        one, two = list(one.values()), list(two.values())
    if isinstance(one, (list, tuple)):
        for a, b in zip(one, two, strict=True):
            assert_same_bits(a, b)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == two.dtype and torch.equal(one, two)
    else:
        assert one == two


def assert_no_host_sync(name):
    """A step on a GPU with a full buffer that stores no more images does not wait for the device."""
    method = learn_first_task(make(name, device="cuda", augment="flip", buffer_images=8))
    method.observe(batch(method, 1, 0))
    method.buffer.max_key = 0.0
    given = batch(method, 1, 1)
    with no_waiting():
        parts = method.observe(given)
    assert all(math.isfinite(part.item()) and part.item() > 0 for part in parts.values())
