"""DER++ against loops over images and classes in float64."""

import numpy as np
import pytest
import torch
from support.methods import (
    TASKS,
    Float64Network,
    assert_gradient,
    batch,
    cross_entropy,
    entries_of,
    entries_of_batch,
    images_of,
    learn_first_task,
    make,
    weights_of,
)


def slow_distance(logits, items, reduction):
    """Distance to the logits stored with each image, over the classes that they have."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row, item in enumerate(items):
        for column, stored in enumerate(item.logits):
            total = total + (logits[row, column] - float(stored)) ** 2
            count += 1
    return total / (len(items) if reduction == "sum" else count)


def record_replays(method):
    """The positions that each step replays, in a list that grows."""
    recorded, replay = [], method.buffer.replay
    method.buffer.replay = lambda positions, classes: recorded.append(positions) or replay(positions, classes)
    return recorded


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_step_is_that_of_the_slow_computation(reduction):
    method = learn_first_task(make("der++", reduction=reduction, replay_batch=6, alpha=0.3, beta=0.6))
    method.observe(batch(method, 1, 0))
    recorded = record_replays(method)
    for step in (1, 2):
        given, items, network = batch(method, 1, step), list(method.buffer.items), Float64Network(method)
        parts = {name: part.item() for name, part in method.observe(given).items()}
        dark, labelled = ([items[k] for k in positions] for positions in (recorded[-1][:6], recorded[-1][6:]))
        assert {len(item.logits) for item in dark} == {2, 5}
        logits = network.logits(torch.cat([given.images.double(), images_of(dark), images_of(labelled)]))
        cls = cross_entropy(logits[:4], entries_of_batch(given, 2), reduction)
        mse = slow_distance(logits[4:10], dark, reduction)
        replay = cross_entropy(logits[10:], entries_of(labelled), reduction)
        assert parts == pytest.approx({"cls": cls.item(), "mse": mse.item(), "replay": replay.item()}, rel=1e-4)
        g = network.gradient(cls + 0.3 * mse + 0.6 * replay)
        assert_gradient(weights_of(method), g)


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
    assert method.footprint().bytes == sum(len(item.jpeg) + 2 + 2 + 2 * 2 for item in method.buffer.items)


def test_images_for_logits_and_for_labels_are_sampled_independently():
    method = learn_first_task(make("der++"), steps=4)
    recorded = record_replays(method)
    for step in range(4):
        method.observe(batch(method, 1, step))
    pairs = [(set(positions[:4]), set(positions[4:])) for positions in recorded]
    assert all(len(positions) == 8 for positions in recorded) and all(len(a) == len(b) == 4 for a, b in pairs)
    assert any(a != b for a, b in pairs)
    assert any(a & b for a, b in pairs)


def test_an_image_that_was_stored_without_logits_has_no_distance():
    method = make("der++", alpha=1.0, beta=0.0)
    method.begin_task(TASKS[0])
    method.store(batch(method, 0, 0))
    parts = method.observe(batch(method, 0, 1))
    assert parts["mse"].item() == 0 and parts["replay"].item() > 0
