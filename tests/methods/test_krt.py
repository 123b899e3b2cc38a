"""KRT and KRT-R against their losses, computed slowly in float64; and its pseudo labels."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from support import methods
from support.methods import (
    TASKS,
    Float64MapNetwork,
    assert_step,
    batch,
    cross_entropy,
    entries_of,
    entries_of_batch,
    images_of,
    learn_first_task,
)
from torchvision.models import VisionTransformer

from lifelabel.errors import UserError
from lifelabel.methods import METHODS, Batch
from lifelabel.methods.krt import PseudoLabels
from lifelabel.nn.backbone import Layout
from lifelabel.nn.backbones import Backbone
from lifelabel.nn.library_backbones import TorchvisionTransformer

OLD = len(TASKS[0])


def make(name="krt", **options):
    return methods.make(name, **{"width": 16, **options})


class Float64(Float64MapNetwork):
    def run(self, images):
        """Embeddings and logits."""
        maps = self.maps(images)
        return self.head.embed(maps), self.head(maps)


def asl(logits, entries, reduction):
    """`entries`: for each image, {column: label} of its known and pseudo labels. Weights have no gradient."""
    total, count = 0.0, 0
    for row, image in enumerate(entries):
        for column, label in image.items():
            p = torch.sigmoid(logits[row, column])
            q = (p - 0.05).clamp(min=0)
            total = total - (torch.log(p) if label else q.detach() ** 4 * torch.log(1 - q))
            count += 1
    return total / (len(entries) if reduction == "sum" else count)


def token_loss(old, new):
    """Of the embeddings of all old tasks of each image as one row."""
    rows = [(a.flatten(), b.flatten()) for a, b in zip(old, new, strict=True)]
    return sum(1 - (a @ b) / (a.norm() * b.norm()) for a, b in rows) / len(rows)


def with_pseudo(pseudo, entries):
    """For each image, its pseudo labels of old classes and its known labels, which take their place."""
    return [{**dict(enumerate(own)), **known} for own, known in zip(pseudo, entries, strict=True)]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", ["krt", "krt-r"])
def test_losses_and_gradients_equal_the_slow_computation(name, reduction, monkeypatch):
    replayed = {"replay_weight": 0.5, "buffer_images": 3, "replay_batch": 3} if name == "krt-r" else {}
    method = methods.learned(make(name, reduction=reduction, token_weight=2.0, **replayed), 2)
    old_network, old, new = Float64(method, frozen=True), OLD + len(TASKS[1]), len(TASKS[2])
    method.begin_task(TASKS[2])
    items = list(method.buffer.items) if replayed else []
    if items:
        monkeypatch.setattr(method.buffer, "sample", lambda count: [0, 1, 2])
    given, network, search = batch(method, 2, 0), Float64(method), copy.deepcopy(method.pseudo_labels)
    images = torch.cat([given.images.double(), *([images_of(items)] if items else [])])
    embeddings, logits = network.run(images)
    old_embeddings, old_logits = (part.detach() for part in old_network.run(images))

    count, probabilities = len(given.images), old_logits.sigmoid().float()
    pseudo = (probabilities >= search.search(probabilities[:count])).tolist()
    assert 0 < sum(map(sum, pseudo)) < len(pseudo) * old
    parts = {"cls": asl(logits[:count], with_pseudo(pseudo[:count], entries_of_batch(given, old)), reduction)}
    parts["token"] = token_loss(old_embeddings, embeddings[:, :2])
    if items:
        parts["replay"] = asl(logits[count:], with_pseudo(pseudo[count:], entries_of(items)), reduction)
    weight = 2.0 * math.sqrt((old + new) / new) / (1 if reduction == "sum" else old + new)
    total = parts["cls"] + weight * parts["token"] + 0.5 * parts.get("replay", 0)
    assert_step(method, given, network, parts, total, rel=1e-3)
    assert method.pseudo_labels.task_images == count  # stored images are no images of the task


@pytest.mark.parametrize(("loss", "slow_loss"), [("asl", asl), ("bce", cross_entropy)])
def test_the_first_task_has_only_the_classification_loss(loss, slow_loss):
    method = make(loss=loss)
    method.begin_task(TASKS[0])
    given, network = batch(method, 0, 0), Float64(method)
    cls = slow_loss(network.logits(given.images), entries_of_batch(given, 0), "mean")
    assert_step(method, given, network, {"cls": cls}, cls, rel=1e-3)
    assert (method.pseudo_labels.labels, method.pseudo_labels.images) == (given.labels.sum(), 4)


def test_the_weight_of_the_token_loss_is_that_of_the_release():
    """COCO B0-C10: lambda 100 beside a sum over 64 images and all classes."""
    method = METHODS["krt"](make(token_weight=100 / 64).setting, make(token_weight=100 / 64).options)
    weights = []
    for task in range(8):
        method.begin_task([f"class {task} {index}" for index in range(10)])
        weights.append(method.loss_weights()["token"])
    assert weights[1] == pytest.approx(0.11, abs=0.001) and weights[7] == pytest.approx(0.055, abs=0.001)


@pytest.mark.parametrize("gated", [False, True])
def test_each_class_has_its_mean_probability_as_threshold(gated):
    """Over all images of the task so far, in the first pass alone; with the gate, uncertain labels are unknown."""
    method = learn_first_task(make(thresholds="class-gated" if gated else "class"))
    rng, seen = np.random.default_rng(0), np.empty((0, OLD))
    for step in range(4):
        given = dataclasses.replace(batch(method, 1, step), first_pass=step < 3)
        p = rng.random((4, OLD)) ** (1, 3)  # the second class is rarer
        if given.first_pass:
            seen = np.concatenate([seen, p])
        entropy = lambda q: -q * np.log(q) - (1 - q) * np.log(1 - q)  # noqa: E731
        certain = entropy(p) <= entropy(seen).mean(0) if gated else np.ones_like(p, bool)
        labels, known = method._restore_labels([given], torch.from_numpy(p).logit())[0]
        assert labels[:, :OLD].tolist() == (p >= seen.mean(0)).tolist()
        assert known[:, :OLD].tolist() == certain.tolist() and (not gated or 0 < certain.sum() < certain.size)
        assert torch.equal(labels[:, OLD:], given.labels) and torch.equal(known[:, OLD:], given.known)


def test_a_known_label_of_an_old_class_passes_the_gate():
    method = learn_first_task(make(thresholds="class-gated"))
    given = batch(method, 1, 0)
    mask = torch.tensor([[True, False]]).repeat(4, 1)
    complete = Batch(given.images, torch.cat([mask.float(), given.labels], 1), torch.cat([mask, given.known], 1), ())
    uncertain = torch.tensor([0.01, 0.01, 0.5, 0.5])[:, None].expand(4, OLD)
    labels, known = method._restore_labels([complete], uncertain.logit())[0]
    assert labels[:, 0].all() and known[:, 0].all() and known[:, 1].tolist() == [True, True, False, False]


@pytest.mark.parametrize("thresholds", ["class", "class-gated"])
def test_a_run_with_a_threshold_per_class_resumes_to_the_bit(thresholds):
    straight = learn_first_task(make("krt-r", thresholds=thresholds, buffer_images=5))
    straight.observe(batch(straight, 1, 0))
    resumed = make("krt-r", thresholds=thresholds, buffer_images=5)
    resumed.load_state_dict(copy.deepcopy(straight.state_dict()))
    states = []
    for method in (straight, resumed):
        torch.manual_seed(1)
        method.observe(batch(method, 1, 1))
        states.append(method.state_dict())
    assert methods.same(*states) and states[0]["pseudo_labels"]["sums"].all()


def test_known_labels_of_old_classes_count_in_the_search():
    """Every image has one known old label, and one is expected: no pseudo label is added."""
    method, other = learn_first_task(make()), learn_first_task(make())
    for each in (method, other):
        each.pseudo_labels.expected.fill_(1.0)
    given = batch(method, 1, 0)
    old = torch.tensor([[1.0, 0.0]]).repeat(4, 1)
    mask = torch.tensor([[True, False]]).repeat(4, 1)
    complete = Batch(given.images, torch.cat([old, given.labels], 1), torch.cat([mask, given.known], 1), ())
    logits = torch.tensor([0.3, 0.5]).logit().repeat(4, 1)
    assert method._restore_labels([complete], logits)[0][0][:, :OLD].tolist() == [[1, 0]] * 4
    assert other._restore_labels([given], logits)[0][0][:, :OLD].tolist() == [[0, 1]] * 4


def test_a_transformer_has_patch_tokens_for_places():
    vit = VisionTransformer(image_size=24, patch_size=8, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=16)
    layout = Layout("NLC", 16, prefix=1, class_token=True, patch=(8, 8))
    backbone = Backbone(TorchvisionTransformer(vit), 16, "max", layout=layout)
    made = make()
    method = METHODS["krt"](dataclasses.replace(made.setting, backbone=backbone), made.options)
    learn_first_task(method)
    distances = [method.observe(batch(method, 1, step))["token"].item() for step in range(2)]
    assert distances[1] > 1e-4  # the first step compares the network with its copy


def test_a_width_that_the_heads_do_not_divide_is_refused():
    with pytest.raises(UserError, match=r"method\.width=12 is no multiple of 8"):
        make(width=12)


# Pseudo labels


def slow_search(probabilities, expected, start):
    """The literal search over all probabilities of the task (images x old classes), from a threshold."""
    steps, best, first_error = round(start * 200), None, None
    for _ in range(100):
        threshold = np.float32(steps) / np.float32(200)
        error = (probabilities >= threshold).sum() / len(probabilities) - expected
        if best is None or abs(error) < best[0]:
            best = abs(error), threshold
        first_error = error if first_error is None else first_error
        if abs(error) <= 0.1 or np.sign(error) != np.sign(first_error):
            break
        steps = min(max(steps + int(np.sign(error)), 0), 200)
    return best[1]


def labels_of(per_image, old, new, density=1.0):
    """Pseudo labels that expect `per_image` old labels of each image."""
    found = PseudoLabels(density)
    found.labels += round(per_image * 1000)
    found.images += 1000
    found.begin_task(old, new)
    return found


@pytest.mark.parametrize("expected", [0.0, 0.13, 0.71, 1.37, 2.93, 7.1, 9.3])
@pytest.mark.parametrize("power", [0.3, 1.0, 6.0])
def test_each_step_finds_the_threshold_of_the_literal_search(expected, power):
    rng = np.random.default_rng(3)
    found, seen, threshold = labels_of(2 * expected, 4, 4), np.empty((0, 8), np.float32), 0.8
    for count in (1, 5, 2, 17):
        given = rng.random((count, 8), np.float32) ** np.float32(power)
        given[0, :3] = 0.75, 0.8, 1.0  # values of the grid, and its end
        seen = np.concatenate([seen, given])
        threshold = slow_search(seen, expected, threshold)
        assert found.search(torch.from_numpy(given)).item() == threshold
        found.search(torch.from_numpy(given), new_images=False)  # a later pass does not move it
        assert found.start == round(threshold * 200)
    found.begin_task(8, 4)
    assert found.start == round(threshold * 200)


def test_the_expected_number_is_that_of_earlier_tasks_times_the_share_of_old_classes():
    found = PseudoLabels(density=0.5)
    found.begin_task(0, 2)
    assert found.expected == 0
    found.count(
        torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([[True, True], [True, True], [True, False]])
    )
    found.begin_task(2, 3)
    assert found.expected.item() == pytest.approx(0.5 * 2 / 5 * 3 / 3)
    found.search(torch.rand(4, 2))
    found.count(torch.ones(2, 5), torch.ones(2, 5, dtype=torch.bool))
    assert found.expected.item() == pytest.approx(0.2)  # the labels of the task itself do not change it
    found.begin_task(5, 5)
    assert found.expected.item() == pytest.approx(0.5 * 5 / 10 * 13 / 5)
    assert not found.histogram.any() and found.task_images == 0


def test_a_given_prevalence_takes_the_place_of_the_labels_so_far():
    found = PseudoLabels(density=2.0, prevalence=2.9 / 80)
    found.count(torch.ones(3, 2), torch.ones(3, 2, dtype=torch.bool))
    found.begin_task(10, 10)
    assert found.expected.item() == pytest.approx(2.9 * 10 / 80)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_pseudo_labels_are_the_same_on_the_gpu():
    on_cpu, on_gpu = labels_of(2.3, 4, 4), PseudoLabels(device="cuda")
    on_gpu.load_state_dict(on_cpu.state_dict())
    for _ in range(5):
        given = torch.rand(9, 6)
        assert on_gpu.search(given.cuda()).item() == on_cpu.search(given).item()
