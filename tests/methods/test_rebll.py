"""RebLL against loops over images and classes in float64, and the labels that are filled in by hand."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from support.methods import (
    TASKS,
    Float64Network,
    assert_gradient,
    batch,
    images_of,
    make,
    weights_of,
)

from lifelabel.methods import HostBatch
from lifelabel.nn import losses

START = [0, 2, 5, 7]
"""The first column of each task."""


def learn(method, tasks, steps=3):
    """Learn the first tasks. Returns the expert and the network at the end of each task, in float64."""
    models = []
    for task in range(tasks):
        method.begin_task(TASKS[task])
        for step in range(steps):
            method.observe(batch(method, task, step))
        method.end_task()
        models.append(Float64Network(method, frozen=True))
    return models


def slow_loss(logits, rows, gamma, reduction):
    """`rows`: for each image, {column: target} of its known and filled labels."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row, targets in enumerate(rows):
        for column, y in targets.items():
            p = torch.sigmoid(logits[row, column])
            total = total - y * (1 - p) ** gamma * torch.log(p) - (1 - y) * torch.log(1 - p)
            count += 1
    return total / (len(rows) if reduction == "sum" else count)


def slow_distillation(logits, expert, decay, reduction):
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(expert)):
        for column in range(expert.shape[1]):
            z, p = torch.sigmoid(expert[row, column]), torch.sigmoid(logits[row, column])
            total = total - torch.exp(-decay * z) * (z * torch.log(p) + (1 - z) * torch.log(1 - p))
    return total / (len(expert) if reduction == "sum" else expert.numel())


def targets_of(items, relabel):
    """The visible labels of stored images, and the labels that were filled in for the others."""
    rows = []
    for item in items:
        fill = (lambda s: float(s > 0)) if relabel == "hard" else (lambda s: 1 / (1 + math.exp(-s)))
        row = {} if item.logits is None else {column: fill(float(s)) for column, s in enumerate(item.logits)}
        row |= {item.offset + k: float(y) for k, y in enumerate(item.labels) if item.known[k]}
        rows.append(row)
    return rows


@pytest.mark.parametrize(("relabel", "reduction"), [("hard", "mean"), ("soft", "sum"), ("none", "mean")])
def test_a_step_is_that_of_the_slow_computation(relabel, reduction):
    options = {"gamma": 0.7, "decay": 1.5, "lambdas": (0.3, 0.6), "replay_weight": 0.8}
    method = make("rebll", reduction=reduction, replay_batch=99, relabel=relabel, **options)
    old = learn(method, 2, steps=2)[-1]
    method.begin_task(TASKS[2])
    method.observe(batch(method, 2, 0))
    given, items = batch(method, 2, 1), list(method.buffer.items)
    assert {item.offset for item in items} == {0, 2, 5} and not all(item.known.all() for item in items)
    network = Float64Network(method)
    logits = network.logits(torch.cat([given.images.double(), images_of(items)]))
    known, labels = given.known.tolist(), given.labels.tolist()
    own = [{5 + k: labels[i][k] for k in range(2) if known[i][k]} for i in range(4)]
    cls = slow_loss(logits[:4], own, 0.7, reduction)
    dst = slow_distillation(logits[:4], old.logits(given.images).detach(), 1.5, reduction)
    replay = slow_loss(logits[4:], targets_of(items, relabel), 0.7, reduction)
    parts = {name: part.item() for name, part in method.observe(given).items()}
    assert parts == pytest.approx({"cls": cls.item(), "dst": dst.item(), "replay": replay.item()}, rel=1e-4)
    expected = network.gradient(0.3 * cls + 0.6 * dst + 0.8 * replay)
    assert_gradient(weights_of(method), expected)


def test_the_missing_labels_of_the_block_matrix_are_from_the_right_models():
    """Rows: tasks of images, columns: tasks of classes. Above the diagonal model t, below it the model before."""
    method = make("rebll")
    models = learn(method, 3, steps=1)
    offered = {task: batch(method, task, 0).images for task in range(3)}
    seen = set()
    for item, image in zip(method.buffer.items, images_of(method.buffer.items), strict=True):
        of_image = START.index(item.offset)
        assert item.logits.dtype == np.float16 and len(item.logits) == 7
        original = min(offered[of_image], key=lambda other: (other - image).abs().mean())  # before it became a JPEG
        for of_class in range(3):
            columns = slice(START[of_class], START[of_class + 1])
            model = models[of_image - 1] if of_class < of_image else models[of_class]
            expected = model.logits((original if of_class < of_image else image)[None])[0, columns]
            np.testing.assert_allclose(item.logits[columns], expected.detach(), rtol=5e-3, atol=5e-3)
            seen.add((of_image, of_class))
    assert len(seen) == 9


def test_visible_labels_are_never_replaced_and_unknown_ones_are_marked():
    """A hand-made buffer: image a of task 1, image b of task 2, while task 3 is learned."""
    method = make("rebll", replay_batch=2)
    for task in range(2):
        method.begin_task(TASKS[task])
        known = np.array([[True, False], [True, True, False]][task])[None]
        host = HostBatch(torch.zeros(1, 24, 24, 3, dtype=torch.uint8), known & (task == 0), known)
        below = torch.tensor([[-3.0, 3.0]]) if task else None
        method.buffer.offer(host, START[task], below)
        method.buffer.extend_logits(torch.full((task + 1, len(TASKS[task])), 2.0 - 4 * task))  # all 1, then all 0
    method.begin_task(TASKS[2])
    order = sorted(range(2), key=lambda k: method.buffer.items[k].offset)
    replayed = method.buffer.replay(order, 7)
    #                             task 1         task 2                task 3, which is running
    assert replayed.known.tolist() == [
        [True, False, False, False, False, False, False],
        [False, False, True, True, False, False, False],
    ]
    assert replayed.stored.tolist() == [[True] * 5 + [False] * 2] * 2
    caught = {}
    method.asymmetric_loss = lambda logits, targets, known: caught.update(targets=targets, known=known)
    method.replay_loss(torch.zeros(2, 7), replayed)
    used = torch.where(caught["known"], caught["targets"], torch.nan)
    np.testing.assert_array_equal(
        used,
        [
            [1, 1, 0, 0, 0, np.nan, np.nan],  # visible 1, unknown filled in after its task, model 2
            [0, 1, 0, 0, 0, np.nan, np.nan],  # model 1, visible 0, unknown filled in after its task
        ],
    )


def test_stored_images_do_not_train_the_classes_of_the_running_task():
    """They are labelled with these classes only when the task ends."""
    method = make("rebll", replay_weight=1e6)
    learn(method, 1)
    method.begin_task(TASKS[1])
    before = [weight.detach().clone() for weight in method.head.weights]
    parts = method.observe(batch(method, 1, 0, hidden=1.0))  # all labels of the new batch are unknown
    assert parts["cls"].item() == 0 and parts["replay"].item() > 0
    assert not torch.equal(method.head.weights[0], before[0]) and torch.equal(method.head.weights[1], before[1])


def test_without_its_three_parts_it_is_er_with_the_distillation_of_lwf():
    method = make("rebll", gamma=0, decay=0, relabel="none")
    learn(method, 1)
    method.begin_task(TASKS[1])
    given = batch(method, 1, 0)
    logits, soft = torch.randn(4, 5), torch.rand(4, 2)
    torch.testing.assert_close(method.asymmetric_loss(logits[:, 2:], given.labels, given.known),
                               losses.classification(logits[:, 2:], given.labels, "mean", given.known))  # fmt: skip
    torch.testing.assert_close(method.distillation_loss(logits[:, :2], soft, given),
                               losses.distillation(logits[:, :2], soft))  # fmt: skip
    assert all(item.logits is None for item in method.buffer.items)


def test_confident_positive_predictions_have_less_weight_and_negative_labels_keep_theirs():
    method = make("rebll", gamma=1.0, decay=2.0)
    learn(method, 1)
    method.begin_task(TASKS[1])
    given = batch(method, 1, 0, count=1)

    def pull(loss, value):
        logits = torch.full((1, 2), value, requires_grad=True)
        return torch.autograd.grad(loss(logits), logits)[0][0, 0].item()

    known = torch.ones(1, 2, dtype=torch.bool)
    for value in (0.0, 1.0, 2.0):
        p = 1 / (1 + math.exp(-value))
        negative = pull(lambda s: method.asymmetric_loss(s, torch.zeros(1, 2), known), value)
        positive = pull(lambda s: method.asymmetric_loss(s, torch.ones(1, 2), known), value)
        assert negative == pytest.approx(p / 2) and -(1 - p) / 2 < positive < 0
    # two predictions of the expert that are equally wrong: the confident one has less weight
    low, high = torch.full((1, 2), 0.2), torch.full((1, 2), 0.8)
    down = pull(lambda s: method.distillation_loss(s, low, given), 0.0)
    up = pull(lambda s: method.distillation_loss(s, high, given), 0.0)
    assert -up / down == pytest.approx(math.exp(-2 * 0.6))
    # where the network agrees with the expert, the distillation does not move it
    assert pull(lambda s: method.distillation_loss(s, high, given), math.log(4)) == pytest.approx(0, abs=1e-6)


def test_both_budgets_hold_after_labels_are_filled_in():
    """Logits take bytes, and images with the largest keys leave for them."""
    method = make("rebll", buffer_images=6)
    learn(method, 1)
    buffer = method.buffer
    assert method.footprint().images == 6
    assert buffer.bytes == sum(len(item.jpeg) + 2 + 2 + 2 * 2 for item in buffer.items)
    assert method.footprint().bytes == buffer.bytes + method.expert.nbytes
    limit, keys = buffer.bytes, sorted(item.key for item in buffer.items)
    buffer.options = dataclasses.replace(buffer.options, buffer_bytes=limit)
    method.begin_task(TASKS[1])
    method.end_task()
    assert len(buffer) == 5 and buffer.bytes == sum(item.bytes for item in buffer.items) <= limit
    assert sorted(item.key for item in buffer.items) == keys[:5] and buffer.max_key == keys[5]
