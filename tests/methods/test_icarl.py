"""iCaRL against loops over images and classes in float64."""

import copy

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
    learned,
    make,
    soft_entries,
)

from lifelabel.methods.exemplars import herding
from lifelabel.methods.icarl import nearest_mean


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("targets", ["expert", "labels"])
def test_a_step_is_that_of_the_slow_computation(reduction, targets):
    method = learned(make("icarl", reduction=reduction, replay_batch=50, replay_targets=targets))
    expert = Float64Network(method, frozen=True)
    method.begin_task(TASKS[1])
    method.observe(batch(method, 1, 0))
    given, items, network = batch(method, 1, 1), list(method.buffer.items), Float64Network(method)
    assert {item.offset for item in items} == {0, 2}
    images = torch.cat([given.images.double(), images_of(items)])
    logits = network.logits(images)  # one pass over new and stored images
    stored = entries_of(items)
    new = [*entries_of_batch(given, 2), *({} if item.offset == 0 else stored[k] for k, item in enumerate(items))]
    old = soft_entries(expert.logits(images).sigmoid())
    if targets == "labels":
        for k, item in enumerate(items):
            old[4 + k] |= stored[k] if item.offset == 0 else {}
    parts = {name: cross_entropy(logits, entries, reduction) for name, entries in (("cls", new), ("dst", old))}
    both = cross_entropy(logits, [{**a, **b} for a, b in zip(new, old, strict=True)], reduction)
    assert_step(method, given, network, parts, both)


def test_the_first_task_has_no_distillation_and_stored_images_count_like_new_ones():
    method = make("icarl")
    method.begin_task(TASKS[0])
    method.observe(batch(method, 0, 0))
    given, items, network = batch(method, 0, 1), list(method.buffer.items), Float64Network(method)
    logits = network.logits(torch.cat([given.images.double(), images_of(items)]))
    cls = cross_entropy(logits, [*entries_of_batch(given, 0), *entries_of(items)], "mean")
    assert_step(method, given, network, {"cls": cls}, cls)


def slow_herding(features):
    """Alg. 4: every remaining image is tried at every position."""
    phi = [x / np.linalg.norm(x) for x in features]
    mean, chosen = sum(phi) / len(phi), []
    for k in range(1, len(phi) + 1):
        left = [x for x in range(len(phi)) if x not in chosen]
        distances = [np.linalg.norm(mean - (phi[x] + sum(phi[p] for p in chosen)) / k) for x in left]
        chosen.append(left[int(np.argmin(distances))])
    return chosen


def test_herding_is_that_of_the_slow_version():
    rng = np.random.default_rng(0)
    for count, dim in ((1, 3), (2, 3), (9, 4), (20, 6)):
        features = rng.normal(size=(count, dim)) + rng.normal(size=dim)
        assert herding(torch.from_numpy(features)).tolist() == slow_herding(features)


def test_the_logits_by_the_nearest_mean_are_differences_of_squared_distances():
    rng = np.random.default_rng(1)
    features, shown = rng.normal(size=(12, 5)) + 1, rng.random((12, 6)) < 0.4
    shown[:, 4], shown[:, 5] = False, True  # no stored image shows the one, all show the other
    head = rng.normal(size=(6, 5)), rng.normal(size=6)
    phi = features / np.linalg.norm(features, axis=1)[:, None]
    given = (features, shown, *head)
    weight, bias = (part.numpy() for part in nearest_mean(*(torch.from_numpy(each) for each in given)))
    means = [phi[shown[:, c]].mean(0) if shown[:, c].any() else None for c in range(6)]
    squares = [np.sum((phi[i] - means[c]) ** 2) for i, c in np.argwhere(shown)]
    query = rng.normal(size=5)
    query /= np.linalg.norm(query)
    for c in range(4):
        rest = phi[~shown[:, c]].mean(0)
        expected = (np.sum((query - rest) ** 2) - np.sum((query - means[c]) ** 2)) / (2 * np.mean(squares))
        assert query @ weight[c] + bias[c] == pytest.approx(expected)
    length = np.linalg.norm(features, axis=1).mean()
    np.testing.assert_allclose(weight[4:], head[0][4:] * length)
    np.testing.assert_array_equal(bias[4:], head[1][4:])


def test_equal_features_give_finite_logits():
    features, shown = torch.ones(4, 3, dtype=torch.float64), torch.eye(4, dtype=torch.bool)
    weight, bias = nearest_mean(features, shown, torch.zeros(4, 3), torch.zeros(4))
    assert weight.isfinite().all() and bias.isfinite().all()


def distances_to_mean(features):
    """Between the mean of the first images and that of all images, for each number of first images."""
    phi = torch.nn.functional.normalize(features, dim=1)
    return [(phi[:count].mean(0) - phi.mean(0)).norm().item() for count in range(1, len(phi) + 1)]


@pytest.mark.parametrize("name", ["icarl", "krt-r"])
def test_a_task_ends_with_herding_and_means_of_the_current_network(name):
    """From stored images that are not mirrored. The classes of earlier tasks get new means and keep their order."""
    method = make(name, augment="flip", buffer_images=12, **({} if name == "icarl" else {"width": 16}))
    learned(method, steps=5)
    method.begin_task(TASKS[1])
    for step in range(5):
        method.observe(batch(method, 1, step))
    before = method.buffer.keys.copy()
    method.end_task()
    buffer, items = method.buffer, method.buffer.items
    with torch.no_grad():
        features = copy.deepcopy(method.learner.backbone).double().eval()(images_of(items))
    for served in range(5):
        if served < 2:
            assert buffer.keys[buffer.serves == served].tolist() == before[buffer.serves == served].tolist()
        else:
            members = np.flatnonzero(buffer.serves == served)
            chosen, slow = buffer.members(served), members[slow_herding(features[members].numpy())]
            assert sorted(chosen) == sorted(members) and len(members) > 1
            # not the order itself: two images may be equally good up to rounding
            np.testing.assert_allclose(*(distances_to_mean(features[each]) for each in (chosen, slow)), atol=1e-5)
    if name != "icarl":
        return
    shown = torch.tensor([[c in item.positives for c in range(5)] for item in items])
    weight, bias = nearest_mean(features, shown, *(part.detach().double() for part in method.head.rows()))
    torch.testing.assert_close(method.nearest[0].double(), weight, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(method.nearest[1].double(), bias, rtol=1e-3, atol=1e-4)


def test_the_scores_of_new_classes_are_those_of_the_head_until_the_task_ends():
    method = learn_first_task(make("icarl"))
    images = batch(method, 1, 7).images
    features = method.features(images).detach()
    phi = features / features.norm(dim=1, keepdim=True)
    scores = method.scores(images)
    torch.testing.assert_close(scores[:, :2], phi @ method.nearest[0].T + method.nearest[1])
    torch.testing.assert_close(scores[:, 2:], method.head(features)[:, 2:])
    assert torch.equal(method.logits(features, 2), scores[:, :2])
    method.observe(batch(method, 1, 0))
    method.end_task()
    assert len(method.nearest[0]) == 5


@pytest.mark.parametrize("options", [{"classifier": "head"}, {"buffer_bytes": 10}])
def test_the_head_scores_if_it_is_chosen_or_nothing_is_stored(options):
    method = make("icarl", **options)
    method.begin_task(TASKS[0])
    method.observe(batch(method, 0, 0))
    method.end_task()
    images = batch(method, 0, 7).images
    assert len(method.buffer) == (0 if "buffer_bytes" in options else 4)
    torch.testing.assert_close(method.scores(images), method.head(method.features(images)))
    torch.testing.assert_close(method.network().eval()(images), method.scores(images))
