"""Known labels of old classes: every method learns from them, and treats the others as if the batch had none."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from support.methods import same
from support.replay import SMALL_OPTIONS, TASKS, batch, make

from lifelabel.methods import METHODS, Batch, HostBatch

OLD = len(TASKS[0])
SOFT = pytest.mark.parametrize(
    "name", ["lwf", "icarl", "agcn", "krt", "csc", "agcn++", "l3a", "weighted-ridge", "rebll"]
)


def begun(name):
    """A method that has learned the first task and begun the second one."""
    method = make(name, **SMALL_OPTIONS.get(name, {}))
    words = {each: torch.randn(4) for each in [name for task in TASKS for name in task]}
    embed = lambda names: torch.stack([words[each] for each in names])  # noqa: E731
    method.setting = dataclasses.replace(method.setting, embed=embed)
    for task, classes in enumerate(TASKS[:2]):
        method.begin_task(classes)
        if task == 0:
            for step in range(4):
                method.observe(batch(method, 0, step))
            method.end_task()
    return method


def with_old(given, labels, known):
    """The same batch with labels of the old classes (one for each, for all images)."""
    count = len(given.images)
    old, mask = (np.tile(np.array(values, bool), (count, 1)) for values in (labels, known))
    host = HostBatch(given.host.pixels, np.hstack([old & mask, given.host.labels]), np.hstack([mask, given.host.known]))
    tensors = torch.from_numpy(host.labels).float(), torch.from_numpy(host.known)
    return Batch(given.images, *tensors, (*TASKS[0], *given.classes), host)


def learned(method, labels=None, known=(False, False)):
    """The state after the second task, with labels of old classes or without."""
    for step in range(3):
        given = batch(method, 1, step)
        method.observe(given if labels is None else with_old(given, labels, known))
    method.end_task()
    return method


def close(a, b, tolerance):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key], tolerance) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(close(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor) and a.is_floating_point():
        return a.shape == b.shape and torch.allclose(a, b, rtol=tolerance, atol=tolerance)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def comparable(method):
    """The state without what holds more columns: the buffer and the sums by task; and EWC's, which samples labels."""
    state = copy.deepcopy(method.state_dict())
    for name in ("buffer", "fisher", "squares"):
        state.pop(name, None)
    if "sums" in state:
        state["sums"].pop("later")
    return state


@pytest.mark.parametrize("name", [name for name in METHODS if name != "multi-task"])
def test_labels_that_are_unknown_change_nothing(name):
    """Up to rounding: sums have more columns, some of them 0. The engine leaves out columns that are all unknown."""
    expected, given = learned(begun(name)), learned(begun(name), (True, True), (False, False))
    assert close(comparable(expected), comparable(given), 1e-4)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "multi-task"])
def test_every_method_learns_from_known_labels(name):
    """With other labels of the old classes the scores of old classes differ in their direction."""
    images = batch(begun(name), 1, 7).images
    scores = []
    for value in (False, True):
        method = learned(begun(name), (value, value), (True, True))
        with torch.no_grad():
            scores.append(method.scores(images)[:, :OLD].sigmoid().mean())
    assert scores[0] < scores[1]


@SOFT
def test_a_known_label_takes_the_place_of_the_soft_label(name):
    """Where only one of the old classes is known, the other one is learned as without labels."""
    method = begun(name)
    given = with_old(batch(method, 1, 0), (True, False), (True, False))
    soft = torch.full((len(given.images), OLD), 0.25)
    targets = given.with_known(soft, len(TASKS[1]))
    assert targets.tolist() == [[1.0, 0.25]] * len(given.images)
    labels, known = given.of_task(len(TASKS[1]))
    original = batch(method, 1, 0)
    assert torch.equal(labels, original.labels) and torch.equal(known, original.known)
    assert torch.equal(original.with_known(soft, len(TASKS[1])), soft)


@pytest.mark.parametrize("name", ["agcn", "agcn++", "weighted-ridge"])
def test_the_matrix_counts_known_labels(name):
    """P(old class | new class) is that of the labels: 1 and 0."""
    method = learned(begun(name), (True, False), (True, True))
    matrix = method.matrix()
    counted = method.acm.hard_counts().numpy() > 0
    assert counted.any()
    np.testing.assert_allclose(matrix[0, OLD:][counted], 1.0)
    np.testing.assert_allclose(matrix[1, OLD:][counted], 0.0)


@pytest.mark.parametrize("name", ["er", "prs", "der++", "ocdm", "agem", "icarl", "rm", "krt-r", "rebll"])
def test_images_are_stored_with_their_known_labels(name):
    method = learned(begun(name), (True, False), (True, False))
    later = [item for item in method.buffer.items if len(item.labels) == OLD + len(TASKS[1])]
    assert later and all(item.offset == 0 for item in later)
    assert all(item.known[0] and item.labels[0] and not item.known[1] for item in later)
    replayed = method.buffer.replay(range(len(method.buffer)), OLD + len(TASKS[1]))
    first_task = [k for k, item in enumerate(method.buffer.items) if len(item.labels) == OLD]
    assert not replayed.known[first_task][:, OLD:].any()


def test_l3a_uses_known_labels_in_place_of_pseudo_labels():
    method = begun("l3a")
    given = with_old(batch(method, 1, 0), (True, False), (True, True))
    values = torch.full((len(given.images), OLD + len(TASKS[1])), 0.9, dtype=torch.float64)  # pseudo labels are 1
    assert method.augment_labels(given, values)[:, :OLD].tolist() == [[1.0, 0.0]] * len(given.images)
    assert not same(method.state_dict(), learned(method, (True, False), (True, True)).state_dict())
