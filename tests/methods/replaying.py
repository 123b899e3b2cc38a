"""What the tests of replay methods share: batches with a host's side, a double of a network, losses by loops."""

import copy
import io
import math

import numpy as np
import torch
from PIL import Image
from waiting import no_waiting

from lifelabel.config import Config
from lifelabel.learner import Setting
from lifelabel.methods import METHODS, Batch
from lifelabel.methods.base import Host

TASKS = [("sky", "sea"), ("boat", "fish", "sun"), ("tree", "house")]


def make(method, reduction="mean", augment="none", batch_norm="running", device="cpu", **options):
    torch.manual_seed(0)
    shared = {"reduction": reduction, "augment": augment, "batch_norm": batch_norm, "lr": 1e-3, "backbone_lr": 1e-3}
    config = Config.make({"method": method, **shared, "method_options": options})
    setting = Setting.of(config, lambda labels: torch.zeros(len(labels), 4), torch.device(device))
    return METHODS[method](setting, config.method_options)


def batch(method, task, seed, count=4, labels=None, hidden=0.2):
    """A batch of a task as the engine makes it, some of its labels unknown."""
    rng = np.random.default_rng([task, seed])
    pixels = torch.from_numpy(rng.integers(0, 256, (count, 6, 6, 3), np.uint8).repeat(4, 1).repeat(4, 2))
    known = rng.random((count, len(TASKS[task]))) >= hidden
    drawn = rng.random(known.shape) < 0.5
    labels = (drawn if labels is None else labels) & known
    device = method.setting.device
    y, mask = torch.from_numpy(labels).float().to(device), torch.from_numpy(known).to(device)
    return Batch(method.setting.backbone.to_input(pixels), y, mask, TASKS[task], Host(pixels, labels, known))


def learn_first_task(method, steps=2):
    method.begin_task(TASKS[0])
    for step in range(steps):
        method.observe(batch(method, 0, step))
    method.end_task()
    method.begin_task(TASKS[1])
    return method


class Double:
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


def flat(tensors):
    return np.concatenate([t.detach().double().numpy().ravel() for t in tensors])


def gradient(method):
    """What the last step of a method followed."""
    return flat([p.grad for p in (*method.learner.backbone.parameters(), *method.head.parameters())])


def images_of(items):
    """Kept images as network input, decoded by Pillow."""
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(item.jpeg)).convert("RGB")) for item in items])
    return torch.from_numpy((pixels.transpose(0, 3, 1, 2) / 255.0 - 0.5) / 0.25)


def cross_entropy(logits, entries, reduction):
    """`entries`: for each image, {column: label} of what is known of it."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row, image in enumerate(entries):
        for column, label in image.items():
            p = torch.sigmoid(logits[row, column])
            total = total - (torch.log(p) if label else torch.log(1 - p))
            count += 1
    return total / (len(entries) if reduction == "sum" else count)


def entries_of_batch(given, first):
    known, labels = given.known.tolist(), given.labels.tolist()
    return [{first + k: labels[i][k] for k in range(len(known[i])) if known[i][k]} for i in range(len(known))]


def entries_of(items):
    return [{item.first + k: y for k, y in enumerate(item.labels) if item.known[k]} for item in items]


def assert_goes_on_exactly(name, tmp_path, **options):
    """Stopped in the middle of the second task, saved and loaded, the same steps follow to the last bit."""
    options = {"augment": "flip", "batch_norm": "first-task", "buffer_images": 10, **options}
    whole = learn_first_task(make(name, **options), steps=4)
    whole.observe(batch(whole, 1, 0))
    torch.save({"method": whole.state_dict(), "random": torch.get_rng_state()}, tmp_path / "c.pt")
    state = torch.load(tmp_path / "c.pt", weights_only=True)
    assert whole.kept().images == 10 and whole.kept().bytes > 0

    def rest(method):
        parts = [method.observe(batch(method, 1, step)) for step in (1, 2, 3)]
        method.end_task()
        method.begin_task(TASKS[2])
        return [*parts, method.observe(batch(method, 2, 0, count=1)), method.observe(batch(method, 2, 1))]

    expected = rest(whole)
    again = make(name, **options)
    again.load_state_dict(state["method"])
    torch.set_rng_state(state["random"])
    assert_same_bits(rest(again), expected)
    assert_same_bits(again.state_dict(), whole.state_dict())
    assert again.kept() == whole.kept()


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


def assert_never_waits_for_the_gpu(name):
    """A step on a GPU, with a full buffer that lets nobody in, asks nothing of the device."""
    method = learn_first_task(make(name, device="cuda", augment="flip", buffer_images=8))
    method.observe(batch(method, 1, 0))
    method.buffer.below = 0.0
    given = batch(method, 1, 1)
    with no_waiting():
        parts = method.observe(given)
    assert all(math.isfinite(part.item()) and part.item() > 0 for part in parts.values())
