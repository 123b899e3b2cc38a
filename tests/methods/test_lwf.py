"""LwF against loops over images and classes in float64."""

import pytest
from support.methods import (
    TASKS,
    Float64Network,
    assert_step,
    batch,
    cross_entropy,
    entries_of_batch,
    make,
    soft_entries,
)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("batch_norm", ["running", "first-task"])
def test_losses_and_gradients_equal_the_slow_computation(batch_norm, reduction):
    """In the first task there is only the classification loss."""
    method = make("lwf", reduction=reduction, batch_norm=batch_norm, lambdas=(0.2, 0.6))
    expert, old = None, 0
    for task, classes in enumerate(TASKS):
        method.begin_task(classes)
        for step in range(2):
            given = batch(method, task, step)
            network = Float64Network(method, frozen=batch_norm == "first-task" and task > 0)
            logits = network.logits(given.images)
            parts = {"cls": cross_entropy(logits, entries_of_batch(given, old), reduction)}
            loss = parts["cls"]
            if expert:
                targets = expert.logits(given.images).sigmoid()
                parts["dst"] = cross_entropy(logits, soft_entries(targets), reduction)
                loss = 0.2 * parts["cls"] + 0.6 * parts["dst"]
            assert_step(method, given, network, parts, loss)
        method.end_task()
        expert, old = Float64Network(method, frozen=True), old + len(classes)
