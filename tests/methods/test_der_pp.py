"""DER++ against loops over images and classes in float64."""

import numpy as np
import pytest
import torch
from support.methods import (
    TASKS,
    Float64Network,
    assert_step,
    batch,
    cross_entropy,
    entries_of,
    entries_of_batch,
    images_of,
    learn_first_task,
    make,
)


def slow_distance(logits, items, reduction):
    """Distance to the logits stored with each image, over the classes that they have."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row, item in enumerate(items):
        for column, stored in enumerate(item.logits):
            total = total + (logits[row, column] - float(stored)) ** 2
            count += 1
    return total / (len(items) if reduction == "sum" else count)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_step_is_that_of_the_slow_computation(reduction):
    method = learn_first_task(make("der++", reduction=reduction, replay_batch=6, alpha=0.3, beta=0.6))
    method.observe(batch(method, 1, 0))
    for step in (1, 2):
        given, items, network = batch(method, 1, step), list(method.buffer.items), Float64Network(method)
        with torch.random.fork_rng([]):
            positions = method.sample(given) + method.sample(given)
        dark, labelled = ([items[k] for k in part] for part in (positions[:6], positions[6:]))
        assert {len(item.logits) for item in dark} == {2, 5}
        logits = network.logits(torch.cat([given.images.double(), images_of(dark), images_of(labelled)]))
        cls = cross_entropy(logits[:4], entries_of_batch(given, 2), reduction)
        mse = slow_distance(logits[4:10], dark, reduction)
        replay = cross_entropy(logits[10:], entries_of(labelled), reduction)
        assert_step(method, given, network, {"cls": cls, "mse": mse, "replay": replay}, cls + 0.3 * mse + 0.6 * replay)


def test_an_image_is_stored_with_its_logits_before_the_step():
    method = make("der++")
    method.begin_task(TASKS[0])
    given = batch(method, 0, 0)
    logits = Float64Network(method).logits(given.images).detach().numpy()
    parts = method.observe(given)
    assert parts.keys() == {"cls", "mse", "replay"} and parts["mse"].item() == parts["replay"].item() == 0
    stored = images_of(method.buffer.items).numpy()
    for image, item in zip(stored, method.buffer.items, strict=True):
        row = int(np.argmin([np.abs(image - other).mean() for other in given.images.numpy()]))
        np.testing.assert_allclose(item.logits, logits[row], rtol=2e-3, atol=1e-4)
        assert item.logits.dtype == np.float16


def test_images_for_logits_and_for_labels_are_sampled_independently():
    method = learn_first_task(make("der++"), steps=4)
    recorded, replay = [], method.buffer.replay
    method.buffer.replay = lambda positions, classes: recorded.append(positions) or replay(positions, classes)
    for step in range(4):
        method.observe(batch(method, 1, step))
    pairs = [(set(positions[:4]), set(positions[4:])) for positions in recorded]
    assert all(len(positions) == 8 for positions in recorded) and all(len(a) == len(b) == 4 for a, b in pairs)
    assert any(a != b for a, b in pairs)
    assert any(a & b for a, b in pairs)
