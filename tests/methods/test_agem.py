"""A-GEM's projection against numpy in float64."""

import numpy as np
import pytest
import torch
from replaying import (
    TASKS,
    Double,
    assert_goes_on_exactly,
    assert_never_waits_for_the_gpu,
    batch,
    cross_entropy,
    entries_of,
    entries_of_batch,
    gradient,
    images_of,
    learn_first_task,
    make,
)

from lifelabel.methods.agem import project


def slow_projection(g, r):
    return g - (g @ r) / (r @ r) * r if g @ r < 0 else g


def test_what_points_against_the_reference_is_taken_out():
    rng = np.random.default_rng(0)
    turned = 0
    for _ in range(20):
        g, r = rng.normal(size=(2, 7))
        got = project(torch.tensor(g), torch.tensor(r)).numpy()
        np.testing.assert_allclose(got, slow_projection(g, r), rtol=1e-12)
        assert got @ r > -1e-12
        turned += g @ r < 0
    assert 0 < turned < 20
    g = torch.tensor([1.0, -2.0])
    assert torch.equal(project(g, torch.zeros(2)), g)  # nothing is known of the kept images: no reference


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("against", [True, False])
def test_a_step_follows_the_slow_projection(reduction, against):
    """The kept images again, with their labels or with the opposite of them: a gradient for, or against, the kept."""
    method = make("agem", reduction=reduction)
    method.begin_task(TASKS[0])
    first = batch(method, 0, 0)
    method.observe(first)
    labels = first.host.labels != against
    given, items = batch(method, 0, 0, labels=labels), list(method.buffer.items)
    double = Double(method)
    cls = cross_entropy(double.logits(given.images), entries_of_batch(given, 0), reduction)
    replay = cross_entropy(double.logits(images_of(items)), entries_of(items), reduction)
    g, r = double.gradient(cls), double.gradient(replay)
    assert (g @ r < 0) == against
    parts = method.observe(given)
    assert parts["cls"].item() == pytest.approx(cls.item(), rel=1e-4)
    assert parts["replay"].item() == pytest.approx(replay.item(), rel=1e-4)
    expected = slow_projection(g, r)
    np.testing.assert_allclose(gradient(method), expected, atol=1e-4 * np.abs(g).max())


def test_in_a_later_task_the_reference_is_over_every_class_that_is_known():
    method = learn_first_task(make("agem", replay_batch=50))
    method.observe(batch(method, 1, 0))
    given, items = batch(method, 1, 1), list(method.buffer.items)
    double = Double(method)
    cls = cross_entropy(double.logits(given.images), entries_of_batch(given, 2), "mean")
    replay = cross_entropy(double.logits(images_of(items)), entries_of(items), "mean")
    g = double.gradient(cls)
    parts = method.observe(given)
    assert parts["replay"].item() == pytest.approx(replay.item(), rel=1e-4)
    expected = slow_projection(g, double.gradient(replay))
    np.testing.assert_allclose(gradient(method), expected, atol=1e-4 * np.abs(g).max())


def test_while_nothing_is_kept_the_step_is_that_of_fine_tuning():
    agem = make("agem")
    agem.begin_task(TASKS[0])
    plain = make("fine-tuning")
    plain.begin_task(TASKS[0])
    parts = agem.observe(given := batch(agem, 0, 0))
    assert parts["replay"].item() == 0
    assert parts["cls"].item() == plain.observe(given)["cls"].item()
    for one, two in zip(agem.learner.backbone.parameters(), plain.learner.backbone.parameters(), strict=True):
        torch.testing.assert_close(one, two)
    assert agem.kept().images == 4 and agem.kept().bytes == agem.buffer.bytes > 0


def test_it_goes_on_exactly(tmp_path):
    assert_goes_on_exactly("agem", tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_no_host_sync_in_a_step_on_the_gpu():
    assert_never_waits_for_the_gpu("agem")
