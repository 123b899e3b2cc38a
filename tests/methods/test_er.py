"""ER against loops over images and classes in float64."""

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


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_step_is_that_of_the_slow_computation(reduction, frozen):
    options = {"reduction": reduction, "batch_norm": "frozen" if frozen else "running", "replay_weight": 0.7}
    method = learn_first_task(make("er", replay_batch=50, **options))
    method.observe(batch(method, 1, 0))
    for step in (1, 2):
        given, items = batch(method, 1, step), list(method.buffer.items)
        assert {item.offset for item in items} == {0, 2} and not all(item.known.all() for item in items)
        network = Float64Network(method, frozen)
        logits = network.logits(torch.cat([given.images.double(), images_of(items)]))  # one pass over both
        cls = cross_entropy(logits[:4], entries_of_batch(given, 2), reduction)
        replay = cross_entropy(logits[4:], entries_of(items), reduction)
        assert_step(method, given, network, {"cls": cls, "replay": replay}, cls + 0.7 * replay)


def test_a_batch_is_not_replayed_in_its_own_step_but_in_the_next():
    method = make("er")
    method.begin_task(TASKS[0])
    assert method.observe(batch(method, 0, 0))["replay"].item() == 0
    assert len(method.buffer) == 4
    assert method.observe(batch(method, 0, 1))["replay"].item() > 0


def test_replay_batch_sets_the_number_of_replayed_images():
    for count, expected in ((None, 4), (3, 3), (6, 6)):
        method = learn_first_task(make("er", replay_batch=count), steps=4)
        given = batch(method, 1, 0)
        replayed = method.recall(method.sample(given))
        logits = method.forward(given, replayed)
        assert len(replayed.images) == expected and logits.shape == (4 + expected, 5)
        assert replayed.labels.shape == replayed.known.shape == (expected, 5)


@pytest.mark.parametrize(("augment", "mirror"), [("none", False), ("flip", True), ("crop-flip", True)])
def test_replayed_images_are_mirrored_if_training_images_are(augment, mirror):
    assert make("er", augment=augment).buffer.mirror == mirror
