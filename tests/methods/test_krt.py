"""KRT and KRT-R against their losses, computed slowly in float64; pseudo labels, frozen tokens, resuming."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from support import methods
from support.methods import TASKS, batch, images_of, learn_first_task
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


class Float64:
    """The network of a method before a step, in float64, and its expert."""

    def __init__(self, method):
        self.networks = [(method.learner.backbone, method.head)]
        self.networks += [(method.expert.backbone, method.expert.head)] if method.expert else []
        self.networks = [tuple(part.double() for part in copy.deepcopy(each)) for each in self.networks]
        self.networks[0][0].train()

    def run(self, images, which=0):
        backbone, head = self.networks[which]
        maps = backbone.maps(backbone.body(images.double()), images.shape[2:])
        return head.embed(maps), head(maps)

    def gradients(self, loss):
        weights = [*self.networks[0][0].parameters(), *self.networks[0][1].parameters()]
        return torch.autograd.grad(loss, weights, allow_unused=True)


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


def token_loss(old, new, reduction):
    total, (images, tasks) = 0.0, old.shape[:2]
    for i, t in np.ndindex(images, tasks):
        total = total + 1 - (old[i, t] @ new[i, t]) / (old[i, t].norm() * new[i, t].norm())
    return total / (images if reduction == "sum" else images * tasks)


def entries_of(labels, known, pseudo, offset):
    """For each image, its pseudo labels of old classes and its known labels, which take their place."""
    return [
        {**dict(enumerate(own)), **{offset + k: float(labels[i][k]) for k in range(len(known[i])) if known[i][k]}}
        for i, own in enumerate(pseudo)
    ]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", ["krt", "krt-r"])
def test_losses_and_gradients_equal_the_slow_computation(name, reduction, monkeypatch):
    replayed = {"replay_weight": 0.5, "buffer_images": 3, "replay_batch": 3} if name == "krt-r" else {}
    method = learn_first_task(make(name, reduction=reduction, token_weight=2.0, **replayed))
    items = list(method.buffer.items) if replayed else []
    if items:
        monkeypatch.setattr(method.buffer, "sample", lambda count: [0, 1, 2])
    given, slow, search = batch(method, 1, 0), Float64(method), copy.deepcopy(method.pseudo_labels)
    images = torch.cat([given.images.double(), *([images_of(items)] if items else [])])
    embeddings, logits = slow.run(images)
    old_embeddings, old_logits = (part.detach() for part in slow.run(images, 1))
    found = method.observe(given)

    count, probabilities = len(given.images), old_logits.sigmoid().float()
    pseudo = (probabilities >= search.search(probabilities[:count])).tolist()
    assert 0 < sum(map(sum, pseudo)) < len(pseudo) * OLD
    entries = entries_of(given.labels.tolist(), given.known.tolist(), pseudo[:count], OLD)
    parts = {
        "cls": asl(logits[:count], entries, reduction),
        "token": token_loss(old_embeddings, embeddings[:, :1], reduction),
    }
    if items:
        stored = entries_of([i.labels for i in items], [i.known for i in items], pseudo[count:], 0)
        parts["replay"] = asl(logits[count:], stored, reduction)
    assert {key: part.item() for key, part in found.items()} == pytest.approx(
        {key: part.item() for key, part in parts.items()}, rel=1e-3
    )
    total = parts["cls"] + 2.0 * parts["token"] + 0.5 * parts.get("replay", 0)
    methods.assert_gradient(methods.weights_of(method), methods.flat(slow.gradients(total)))


def test_the_first_task_has_only_the_classification_loss():
    method = make()
    method.begin_task(TASKS[0])
    given, slow = batch(method, 0, 0), Float64(method)
    logits = slow.run(given.images)[1]
    expected = asl(logits, entries_of(given.labels.tolist(), given.known.tolist(), [[]] * 4, 0), "mean")
    found = method.observe(given)
    assert found.keys() == {"cls"} and found["cls"].item() == pytest.approx(expected.item(), rel=1e-3)
    assert (method.pseudo_labels.labels, method.pseudo_labels.images) == (given.labels.sum(), 4)


def test_cross_entropy_in_place_of_the_asymmetric_loss():
    method = make(loss="bce")
    method.begin_task(TASKS[0])
    given, slow = batch(method, 0, 0), Float64(method)
    logits = slow.run(given.images)[1]
    expected = methods.cross_entropy(logits, methods.entries_of_batch(given, 0), "mean")
    assert method.observe(given)["cls"].item() == pytest.approx(expected.item(), rel=1e-3)


def test_frozen_tokens_and_classifiers_do_not_change_and_shared_weights_do():
    method = make()
    frozen = []
    for task, classes in enumerate(TASKS):
        method.begin_task(classes)
        shared = {name: tensor.clone() for name, tensor in method.head.state_dict().items()}
        for step in range(2):
            method.observe(batch(method, task, step))
        after = method.head.state_dict()
        for tokens, weight, bias in frozen[-1:]:
            assert torch.equal(after["old_retention"], tokens)
            assert torch.equal(after["old_weight"], weight) and torch.equal(after["old_bias"], bias)
        trained = ("transfer", "retention", "weight", "bias", "query.weight", "value.weight", "project.weight")
        assert not any(torch.equal(after[name], shared[name]) for name in trained)
        parts = ((after[f"old_{name}"], after[name]) for name in ("retention", "weight", "bias"))
        frozen.append([torch.cat(pair).clone() for pair in parts])
        method.end_task()


def test_the_token_loss_holds_the_embeddings_of_old_tasks():
    distances = []
    for weight in (0.0, 100.0):
        method = learn_first_task(make(token_weight=weight, batch_norm="frozen"))
        parts = [method.observe(batch(method, 1, step)) for step in range(12)]
        distances.append(parts[-1]["token"].item())
    assert distances[1] < 0.5 * distances[0]


def test_restored_labels_by_hand():
    """Known labels stay, old ones that are unknown get pseudo labels, and new ones of stored images stay unknown."""
    method = learn_first_task(make("krt-r"))
    method.pseudo_labels.expected.fill_(1.0)
    images, new = torch.zeros(2, 3, 8, 8), len(TASKS[1])
    labels, known = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), torch.tensor([[True] * 3, [False, True, True]])
    hidden = torch.zeros(2, new, dtype=torch.bool)
    stored_labels = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    stored_known = torch.tensor([[True, False], [False, True]])
    stored = Batch(images, torch.cat([stored_labels, hidden], 1), torch.cat([stored_known, hidden], 1), ())
    probabilities = torch.tensor([[0.9, 0.1], [0.1, 0.85], [0.1, 0.9], [0.7, 0.99]])  # one label per image at 0.8
    found = method._restore_labels([Batch(images, labels, known, TASKS[1]), stored], probabilities.logit())
    assert found[0][0].tolist() == [[1, 0, 1, 0, 0], [0, 1, 0, 0, 1]]
    assert found[0][1].tolist() == [[True] * 5, [True, True, False, True, True]]
    assert found[1][0][:, :OLD].tolist() == [[1, 1], [0, 0]]
    assert found[1][1].tolist() == [[True] * 2 + [False] * 3] * 2
    assert method.pseudo_labels.task_images == 2  # stored images are no images of the task


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


def slow_search(probabilities, expected):
    """The literal search over all probabilities of the task (images x old classes)."""
    steps, best, first_error = 160, None, None
    for _ in range(100):
        threshold = np.float32(steps) / np.float32(200)
        error = (probabilities >= threshold).sum() / len(probabilities) - expected
        if best is None or abs(error) < best[0]:
            best = abs(error), threshold
        first_error = error if first_error is None else first_error
        if abs(error) <= 0.1 or np.sign(error) != np.sign(first_error):
            break
        steps = min(steps + int(np.sign(error)), 200)
    return best[1]


def labels_of(per_image, old, new, density=1.0):
    """Pseudo labels that expect `per_image` old labels of each image."""
    found = PseudoLabels(density)
    found.labels += round(per_image * 1000)
    found.images += 1000
    found.begin_task(old, new)
    return found


@pytest.mark.parametrize("expected", [0.0, 0.13, 0.71, 1.37, 2.93, 7.1])
@pytest.mark.parametrize("power", [0.3, 1.0, 6.0])
def test_each_step_finds_the_threshold_of_the_literal_search(expected, power):
    rng = np.random.default_rng(3)
    found, seen = labels_of(2 * expected, 4, 4), np.empty((0, 8), np.float32)
    for count in (1, 5, 2, 17):
        given = rng.random((count, 8), np.float32) ** np.float32(power)
        given[0, :3] = 0.75, 0.8, 1.0  # values of the grid, and its end
        seen = np.concatenate([seen, given])
        assert found.search(torch.from_numpy(given)).item() == slow_search(seen, expected)


@pytest.mark.parametrize(
    ("probabilities", "expected", "threshold"),
    [
        ([[0.9, 0.9], [0.85, 0.1]], 1.45, 0.8),  # 1.5 labels at once
        ([[0.9, 0.82], [0.85, 0.1]], 1.0, 0.825),  # one step up from 0.82: two labels remain
        ([[0.9, 0.7], [0.6, 0.1]], 1.0, 0.7),  # down to the second label
        ([[0.7, 0.7], [0.7, 0.7]], 0.9, 0.8),  # at 0.7 there are two labels per image: none is nearer to 0.9
        ([[0.7, 0.7], [0.7, 0.7]], 1.1, 0.7),  # and two are nearer to 1.1
        ([[0.2, 0.2], [0.2, 0.2]], 1.0, 0.8),  # never reached in 100 tries, all of them equal
        ([[1.0, 1.0], [1.0, 1.0]], 1.0, 0.8),  # a probability of 1 is above every threshold
    ],
)
def test_the_search_by_hand(probabilities, expected, threshold):
    found = labels_of(expected * 2, 3, 3).search(torch.tensor(probabilities))
    assert found.item() == pytest.approx(threshold)


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


def test_the_state_of_pseudo_labels_is_restored():
    found = labels_of(1.7, 3, 2)
    found.search(torch.rand(6, 3))
    restored = PseudoLabels()
    restored.load_state_dict(found.state_dict())
    given = torch.rand(5, 3)
    assert torch.equal(restored.search(given), found.search(given)) and restored.nbytes == found.nbytes > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_pseudo_labels_are_the_same_on_the_gpu():
    on_cpu, on_gpu = labels_of(2.3, 4, 4), PseudoLabels(device="cuda")
    on_gpu.load_state_dict(on_cpu.state_dict())
    for _ in range(5):
        given = torch.rand(9, 6)
        assert on_gpu.search(given.cuda()).item() == on_cpu.search(given).item()
