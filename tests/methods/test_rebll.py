"""RebLL against loops over images and classes in float64, and the labels that are filled in."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from support.methods import (
    TASKS,
    Float64Network,
    assert_step,
    batch,
    entries_of,
    entries_of_batch,
    images_of,
    make,
)

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
    fill = (lambda s: float(s > 0)) if relabel == "hard" else (lambda s: 1 / (1 + math.exp(-s)))
    filled = [{} if item.logits is None else dict(enumerate(map(fill, item.logits.tolist()))) for item in items]
    return [{**row, **visible} for row, visible in zip(filled, entries_of(items), strict=True)]


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
    cls = slow_loss(logits[:4], entries_of_batch(given, 5), 0.7, reduction)
    dst = slow_distillation(logits[:4], old.logits(given.images).detach(), 1.5, reduction)
    replay = slow_loss(logits[4:], targets_of(items, relabel), 0.7, reduction)
    parts = {"cls": cls, "dst": dst, "replay": replay}
    assert_step(method, given, network, parts, 0.3 * cls + 0.6 * dst + 0.8 * replay)


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


def test_both_budgets_hold_after_labels_are_filled_in():
    """Logits take bytes, and images with the largest keys leave for them."""
    method = make("rebll", buffer_images=6)
    learn(method, 1)
    buffer = method.buffer
    assert len(buffer) == 6 and buffer.bytes == sum(len(item.jpeg) + 2 + 2 + 2 * 2 for item in buffer.items)
    limit, keys = buffer.bytes, sorted(item.key for item in buffer.items)
    buffer.options = dataclasses.replace(buffer.options, buffer_bytes=limit)
    method.begin_task(TASKS[1])
    method.end_task()
    assert len(buffer) == 5 and buffer.bytes == sum(item.bytes for item in buffer.items) <= limit
    assert sorted(item.key for item in buffer.items) == keys[:5] and buffer.max_key == keys[5]
