"""CSC: its losses and gradients against loops in float64, and what the entropy changes."""

import numpy as np
import pytest
import torch
from support.methods import (
    TASKS,
    Float64MapNetwork,
    assert_step,
    batch,
    cross_entropy,
    entries_of_batch,
    make,
    soft_entries,
)


def slow_entropy(logits, reduction):
    total = 0.0
    for i, j in np.ndindex(*logits.shape):
        p = torch.sigmoid(logits[i, j])
        total = total - p * torch.log(p)
    return total / (len(logits) if reduction == "sum" else logits.numel())


@pytest.mark.parametrize(("reduction", "entropy", "maps"), [("mean", "seen", "sigmoid"), ("sum", "old", "softmax")])
def test_losses_and_gradients_equal_the_slow_computation(reduction, entropy, maps):
    """In the first task, and in the second one, where all parameters of the grown head have a gradient."""
    method = make("csc", width=8, reduction=reduction, entropy=entropy, maps=maps, alpha=0.3, beta=0.7)
    assert method.head.numbers["sigmoid"] == (maps == "sigmoid")
    expert, old = None, 0
    for task in range(2):
        method.begin_task(TASKS[task])
        for step in range(2):
            given, network = batch(method, task, step), Float64MapNetwork(method)
            logits = network.logits(given.images)
            parts = {"cls": cross_entropy(logits, entries_of_batch(given, old), reduction)}
            loss = parts["cls"]
            if expert:
                targets = expert.logits(given.images).sigmoid()
                parts["dst"] = cross_entropy(logits, soft_entries(targets), reduction)
                loss = 0.3 * parts["cls"] + 0.7 * parts["dst"]
            columns = logits if entropy == "seen" else logits[:, :old]
            if columns.numel():
                parts["entropy"] = slow_entropy(columns, reduction)
                loss = loss - 0.7 * parts["entropy"]
            before = [weight.clone() for weight in method.head.parameters()]
            assert_step(method, given, network, parts, loss)
            assert not any(map(torch.equal, before, method.head.parameters()))  # the optimizer has the grown layers
        method.end_task()
        expert, old = Float64MapNetwork(method, frozen=True), len(TASKS[0])


def test_entropy_lowers_confidence():
    """All labels are positive: without the entropy the predictions approach 1, and faster if it is penalised."""
    means = []
    for beta in (0.0, 2.0, -2.0):
        method = make("csc", width=8, beta=beta)
        method.begin_task(TASKS[0])
        given = batch(method, 0, 0, labels=np.ones((4, 2), bool), hidden=0)
        for _ in range(15):
            method.observe(given)
        with torch.no_grad():
            means.append(method.scores(given.images).sigmoid().mean().item())
    assert means[0] > 0.9 and means[1] < 0.7 and means[2] > means[0]
