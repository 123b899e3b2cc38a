"""A-GEM's projection against numpy in float64."""

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

from lifelabel.methods.agem import _project


def slow_projection(g, r):
    return g - (g @ r) / (r @ r) * r if g @ r < 0 else g


def test_the_component_against_the_reference_is_removed():
    rng = np.random.default_rng(0)
    projected = 0
    for _ in range(20):
        g, r = rng.normal(size=(2, 7))
        got = _project(torch.tensor(g), torch.tensor(r)).numpy()
        np.testing.assert_allclose(got, slow_projection(g, r), rtol=1e-12)
        assert got @ r > -1e-12
        projected += g @ r < 0
    assert 0 < projected < 20
    g = torch.tensor([1.0, -2.0])
    assert torch.equal(_project(g, torch.zeros(2)), g)  # no label of the stored images is known: the reference is 0


def assert_projected_step(method, given, offset, reduction="mean"):
    """A step follows the slow projection. Returns g·r."""
    network, items = Float64Network(method), list(method.buffer.items)
    cls = cross_entropy(network.logits(given.images), entries_of_batch(given, offset), reduction)
    replay = cross_entropy(network.logits(images_of(items)), entries_of(items), reduction)
    g, r = network.gradient(cls), network.gradient(replay)
    parts = {name: part.item() for name, part in method.observe(given).items()}
    assert parts == pytest.approx({"cls": cls.item(), "replay": replay.item()}, rel=1e-4)
    assert_gradient(weights_of(method), slow_projection(g, r))
    return g @ r


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("against", [True, False])
def test_a_step_follows_the_slow_projection(reduction, against):
    """The batch has the stored images again, with their labels or with the opposite labels, which give g·r < 0."""
    method = make("agem", reduction=reduction)
    method.begin_task(TASKS[0])
    first = batch(method, 0, 0)
    method.observe(first)
    given = batch(method, 0, 0, labels=first.host.labels != against)
    assert (assert_projected_step(method, given, 0, reduction) < 0) == against


def test_in_a_later_task_the_reference_is_over_all_known_labels():
    method = learn_first_task(make("agem", replay_batch=50))
    method.observe(batch(method, 1, 0))
    assert_projected_step(method, batch(method, 1, 1), 2)


def test_while_nothing_is_stored_the_step_is_that_of_fine_tuning():
    agem = make("agem")
    agem.begin_task(TASKS[0])
    plain = make("fine-tuning")
    plain.begin_task(TASKS[0])
    parts = agem.observe(given := batch(agem, 0, 0))
    assert parts["replay"].item() == 0
    assert parts["cls"].item() == plain.observe(given)["cls"].item()
    for one, two in zip(agem.learner.backbone.parameters(), plain.learner.backbone.parameters(), strict=True):
        torch.testing.assert_close(one, two)
