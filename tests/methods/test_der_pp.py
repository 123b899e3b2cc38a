"""DER++ against loops over images and classes in float64."""

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


def slow_distance(logits, items, reduction):
    """From the logits kept with each image, over the classes that it has some for."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row, item in enumerate(items):
        for column, kept in enumerate(item.logits):
            total = total + (logits[row, column] - float(kept)) ** 2
            count += 1
    return total / (len(items) if reduction == "sum" else count)


def listen(method):
    """The places that each step replays, in a list that grows."""
    asked, replay = [], method.buffer.replay
    method.buffer.replay = lambda places, classes: asked.append(places) or replay(places, classes)
    return asked


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_step_is_that_of_the_slow_computation(reduction):
    method = learn_first_task(make("der++", reduction, replay_batch=6, alpha=0.3, beta=0.6))
    method.observe(batch(method, 1, 0))
    asked = listen(method)
    for step in (1, 2):
        given, items, double = batch(method, 1, step), list(method.buffer.items), Double(method)
        parts = {name: part.item() for name, part in method.observe(given).items()}
        dark, labelled = ([items[place] for place in places] for places in (asked[-1][:6], asked[-1][6:]))
        assert {len(item.logits) for item in dark} == {2, 5}
        logits = double.logits(torch.cat([given.images.double(), images_of(dark), images_of(labelled)]))
        cls = cross_entropy(logits[:4], entries_of_batch(given, 2), reduction)
        mse = slow_distance(logits[4:10], dark, reduction)
        replay = cross_entropy(logits[10:], entries_of(labelled), reduction)
        assert parts == pytest.approx({"cls": cls.item(), "mse": mse.item(), "replay": replay.item()}, rel=1e-4)
        g = double.gradient(cls + 0.3 * mse + 0.6 * replay)
        np.testing.assert_allclose(gradient(method), g, atol=1e-4 * np.abs(g).max())


def test_an_image_is_kept_with_the_logits_it_had_when_it_was_learned():
    method = make("der++")
    method.begin_task(TASKS[0])
    given = batch(method, 0, 0)
    logits = Double(method).logits(given.images).detach().numpy()
    parts = method.observe(given)
    assert parts.keys() == {"cls", "mse", "replay"} and parts["mse"].item() == parts["replay"].item() == 0
    kept = images_of(method.buffer.items).numpy()
    for image, item in zip(kept, method.buffer.items, strict=True):
        row = int(np.argmin([np.abs(image - other).mean() for other in given.images.numpy()]))
        np.testing.assert_allclose(item.logits, logits[row], rtol=2e-3, atol=1e-4)
        assert item.logits.dtype == np.float16
    assert method.kept().bytes == sum(len(item.jpeg) + 2 + 2 + 2 * 2 for item in method.buffer.items)


def test_logits_and_labels_are_drawn_independently():
    method = learn_first_task(make("der++"), steps=4)
    asked = listen(method)
    for step in range(4):
        method.observe(batch(method, 1, step))
    assert all(len(places) == 8 and len(set(places[:4])) == len(set(places[4:])) == 4 for places in asked)
    assert any(set(places[:4]) != set(places[4:]) for places in asked)
    assert any(set(places[:4]) & set(places[4:]) for places in asked)


def test_an_image_that_was_kept_without_logits_has_no_distance():
    method = make("der++", alpha=1.0, beta=0.0)
    method.begin_task(TASKS[0])
    method.remember(batch(method, 0, 0))
    parts = method.observe(batch(method, 0, 1))
    assert parts["mse"].item() == 0 and parts["replay"].item() > 0


def test_it_goes_on_exactly(tmp_path):
    assert_goes_on_exactly("der++", tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_no_host_sync_in_a_step_on_the_gpu_that_keeps_nothing():
    assert_never_waits_for_the_gpu("der++")
