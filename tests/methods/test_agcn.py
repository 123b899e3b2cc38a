"""AGCN against the paper and the authors' code, re-computed slowly: loops, logarithms, no parts of the package."""

import copy
import functools
import itertools
import math

import numpy as np
import pytest
import torch
from stepping import assert_never_waits_for_the_gpu

from lifelabel import losses
from lifelabel.config import Config
from lifelabel.graph import embed
from lifelabel.learner import Setting
from lifelabel.methods import Batch
from lifelabel.methods.agcn import AGCN

TASKS = [("sky", "sea"), ("boat", "fish", "sun"), ("tree", "house")]
IMAGES = 6


def make(fidelity="tuned", **more):
    torch.manual_seed(0)
    config = Config.make({"fidelity": fidelity, "method_options": {"hidden": 16, **more}})
    words = functools.partial(embed, dim=12, norm=config.word_norm)
    setting = Setting.of(config, lambda labels: torch.from_numpy(words(labels)[0]), torch.device("cpu"))
    return AGCN(setting, config.method_options)


def of_first(method, images):
    """Scores of the classes of the first task, of two and of three."""
    return [method.logits(method.features(images), count) for count in (2, 5, 7)]


def batch(images, labels):
    return Batch(images, labels, torch.ones_like(labels, dtype=torch.bool), tuple(map(str, range(labels.shape[1]))))


def batches(task, count=2):
    torch.manual_seed(100 + task)
    new = len(TASKS[task])
    return [batch(torch.randn(IMAGES, 3, 32, 32), (torch.rand(IMAGES, new) < 0.5).float()) for _ in range(count)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def slow_graph(adjacency, words, w1, w2, activate_output):
    def layer(h, w, activate):
        out = adjacency @ h @ w
        return np.where(out > 0, out, 0.2 * out) if activate else out

    return layer(layer(words, w1, True), w2, activate_output)


class SlowReference:
    """The matrix of Eq. 4-7 and what the graph multiplies with, from every label seen, one image at a time."""

    def __init__(self, fidelity, mix, prevalence):
        self.fidelity, self.mix, self.prevalence = fidelity, mix, prevalence
        self.ends = []  # of each task before: its hard labels, and the soft labels as they were counted
        self.matrix = np.zeros((0, 0))
        self.adjacency = np.zeros((0, 0))

    def after(self, ys, zs):
        """The whole matrix after the images of this task so far: hard labels `ys`, the expert's logits `zs`."""
        new, old = len(ys[0]), len(self.matrix)
        soft = [np.exp(z) / np.exp(z).sum() if self.fidelity == "release" else sigmoid(z) for z in zs]
        if self.fidelity == "tuned":
            soft = self.calibrated(soft, old)
        self.now = ys, soft
        a = np.eye(old + new)
        a[:old, :old] = self.matrix
        for j in range(new):
            n_j = sum(y[j] for y in ys)
            for i in range(new):
                if i != j:
                    start = 1e-6 if self.fidelity == "release" else 0  # the code's N_j starts there
                    a[old + i, old + j] = sum(y[i] * y[j] for y in ys) / (n_j + start) if n_j else 0
            for i in range(old):
                together = sum(s[i] * y[j] for s, y in zip(soft, ys, strict=True))
                a[i, old + j] = together / n_j if n_j else 0
                q = together / (self.images_of(i) if self.fidelity == "tuned" else sum(s[i] for s in soft))
                a[old + j, i] = q / 2 if self.fidelity == "release" else q
        return a

    def own_labels(self, i):
        """The labels that were shown of old class i, from all images of its task."""
        for ys, _ in self.ends:
            if i < len(ys[0]):
                return [y[i] for y in ys]
            i -= len(ys[0])

    def calibrated(self, soft, old):
        """Each old class's soft labels, scaled so that their mean is at most `prevalence` times its share so far."""
        images = len(soft) + sum(len(ys) for ys, _ in self.ends)
        out = [s.copy() for s in soft]
        for i in range(old):
            most = self.prevalence * sum(self.own_labels(i)) / images
            mean = sum(s[i] for s in soft) / len(soft)
            for s in out:
                s[i] *= min(1, most / mean)
        return out

    def images_of(self, i):
        """How many images of the whole stream show old class i: shown in its task, expected in the later ones."""
        later = [s[i] for _, soft in [*self.ends, self.now] for s in soft if i < len(s)]
        return sum(self.own_labels(i)) + sum(later)

    def to_adjacency(self, a):
        old, total = len(self.matrix), len(a)
        if self.fidelity == "paper":
            return a
        out = np.zeros_like(a)
        if self.fidelity == "tuned":
            for i in range(total):
                others = sum(a[i, j] for j in range(total) if j != i)
                for j in range(total):
                    out[i, j] = 1 - self.mix if i == j else self.mix * a[i, j] / others if others else 0
            return out

        def block(rows, columns, level, share, self_loops):
            part = np.array([[0 if i == j else a[i, j] for j in columns] for i in rows])
            ones = (part >= level).astype(float)
            scaled = ones * share / (ones.sum(0) + 1e-6)
            return scaled + np.eye(len(rows)) if self_loops else scaled

        olds, news = range(old), range(old, total)
        first = old == 0
        b = block(news, news, 0.0 if first else 0.4, 0.28 if first else 0.25, True)
        d = np.diag(b.sum(1) ** (-0.8 if first else -0.5))
        out[old:, old:] = d @ b.T @ d
        if not first:
            out[:old, :old] = self.adjacency
            out[:old, old:] = block(olds, news, 0.3, 0.25, False)
            out[old:, :old] = block(news, olds, 0.3, 0.25, False)
        return out


def slow_losses(fidelity, y, y_hat, z, g, h):
    def cross_entropy(targets, logits):
        total = 0.0
        for target, logit in zip(targets, logits, strict=True):
            image = 0.0
            for t, x in zip(target, logit, strict=True):
                p = 1 / (1 + math.exp(-x))
                image -= t * math.log(p) + (1 - t) * math.log(1 - p)
            total += image if fidelity == "paper" else image / len(target)
        return total / len(targets)

    old = len(g)
    cls = cross_entropy(y, y_hat[:, old:])
    if not old:
        return {"cls": cls}
    distance = sum((g[i, k] - h[i, k]) ** 2 for i in range(old) for k in range(g.shape[1]))
    gph = distance if fidelity == "paper" else distance / g.size
    return {"cls": cls, "dst": cross_entropy(sigmoid(z), y_hat[:, :old]), "gph": gph}


@pytest.mark.parametrize("fidelity", ["tuned", "paper", "release"])
def test_every_step_equals_the_slow_computation(fidelity):
    method = make(fidelity, mix=0.3, **({"prevalence": 0.9} if fidelity == "tuned" else {}))
    slow = SlowReference(fidelity, 0.3, 0.9)
    expert_net, g = None, np.zeros((0, 256))
    words = np.zeros((0, 12))
    for t, classes in enumerate(TASKS):
        method.begin_task(classes)
        words = np.concatenate([words, method.setting.embed(classes).numpy()]).astype(np.float64)
        ys, zs = [], []
        for batch in batches(t):
            w1, w2 = (w.detach().numpy().astype(np.float64) for w in (method.graph.w1, method.graph.w2))
            with torch.no_grad():
                z = expert_net(batch.images).numpy().astype(np.float64) @ g.T if len(g) else np.zeros((IMAGES, 0))
                student = copy.deepcopy(method.learner.backbone)
                student.set_training(freeze_statistics=fidelity == "tuned" and t > 0)
                features = student(batch.images).numpy().astype(np.float64)
            ys += list(batch.labels.numpy())
            zs += list(z)
            matrix = slow.after(ys, zs)
            h = slow_graph(slow.to_adjacency(matrix), words, w1, w2, activate_output=fidelity == "paper")
            expected = slow_losses(fidelity, batch.labels.numpy(), features @ h.T, z, g, h)
            got = {name: value.item() for name, value in method.observe(batch).items()}
            assert got.keys() == expected.keys()
            for name, value in expected.items():
                assert got[name] == pytest.approx(value, rel=1e-4, abs=1e-7), (t, name)
            np.testing.assert_allclose(method.matrix(), matrix, atol=1e-6)
        method.end_task()
        w1, w2 = (w.detach().numpy().astype(np.float64) for w in (method.graph.w1, method.graph.w2))
        adjacency = slow.to_adjacency(matrix)
        g = slow_graph(adjacency, words, w1, w2, activate_output=fidelity == "paper")
        expert_net = copy.deepcopy(method.learner.backbone).eval()
        slow.matrix, slow.adjacency = matrix, adjacency
        slow.ends.append(slow.now)
        np.testing.assert_allclose(method.expert.nodes.numpy(), g, atol=1e-4)


def test_the_step_follows_the_weighted_sum_of_the_losses():
    """With two lambdas at zero, the gradient is the remaining loss's alone."""
    for position, name in enumerate(("cls", "dst", "gph")):
        lambdas = [0.0, 0.0, 0.0]
        lambdas[position] = 2.0
        method = make(lambdas=tuple(lambdas))
        method.begin_task(TASKS[0])
        for batch in batches(0):
            method.observe(batch)
        method.end_task()
        method.begin_task(TASKS[1])
        batch = batches(1)[0]
        method.observe(batch)
        twin = copy.deepcopy(method)
        got = method.observe(batch)
        z = twin.expert.logits(batch.images)
        twin.acm.update(batch.labels, z.sigmoid())
        nodes = twin.nodes()
        y_hat = twin.learner.features(batch.images) @ nodes.T
        loss = {
            "cls": losses.classification(y_hat[:, 2:], batch.labels),
            "dst": losses.distillation(y_hat[:, :2], z.sigmoid()),
            "gph": losses.relationship(twin.expert.nodes, nodes[:2]),
        }[name]
        twin.learner.step(2.0 * loss)
        assert got[name].item() == pytest.approx(loss.item())
        torch.testing.assert_close(method.graph.w1, twin.graph.w1)
        torch.testing.assert_close(method.learner.backbone.body[0].weight, twin.learner.backbone.body[0].weight)


def test_the_expert_is_frozen_while_the_student_learns():
    method = make()
    method.begin_task(TASKS[0])
    for batch in batches(0):
        method.observe(batch)
    method.end_task()
    before = copy.deepcopy(method.expert.state_dict())
    student = copy.deepcopy(method.learner.backbone.state_dict())
    method.begin_task(TASKS[1])
    for batch in batches(1):
        method.observe(batch)
    assert all(torch.equal(v, before["backbone"][k]) for k, v in method.expert.backbone.state_dict().items())
    assert torch.equal(method.expert.nodes, before["nodes"])
    assert not all(torch.equal(v, student[k]) for k, v in method.learner.backbone.state_dict().items())


def test_earlier_classes_are_scored_with_the_matrix_they_had():
    for kind in ("mixed", "binarised", "raw", "identity"):
        method = make(adjacency=kind, context=0.0)
        adjacencies = []
        for t, classes in enumerate(TASKS):
            method.begin_task(classes)
            for batch in batches(t):
                method.observe(batch)
            method.end_task()
            adjacencies.append(method.adjacency.dense())
        images = batches(0)[0].images
        with torch.no_grad():
            scores = of_first(method, images)
            features = method.learner.features(images)
            for score, a, count in zip(scores, adjacencies, (2, 5, 7), strict=True):
                torch.testing.assert_close(score, features @ method.graph(a, method.words[:count]).T)
            torch.testing.assert_close(scores[-1], method.scores(images))


def learned(**more):
    method = make(**more)
    for t, classes in enumerate(TASKS):
        method.begin_task(classes)
        for batch in batches(t):
            method.observe(batch)
        method.end_task()
    return method


def test_context_adds_what_the_other_labels_say():
    method, images = learned(context=0.4), batches(0)[0].images
    with torch.no_grad():
        logits = (method.learner.features(images) @ method.nodes().T).double().numpy()
        got = method.scores(images).numpy()
    task = [t for t, names in enumerate(TASKS) for _ in names]
    a, shown = method.matrix(), method.acm.shown_so_far().numpy()
    expected, seen = method.acm.expected_so_far().numpy(), 3 * 2 * IMAGES
    for x in range(IMAGES):
        heard = list(logits[x])
        for _ in range(2):  # the second time, what each label has become
            say = [0.0] * 7
            for i, j in itertools.permutations(range(7), 2):
                first, last = (i, j) if task[i] <= task[j] else (j, i)
                together = a[first, last] * shown[last]
                lift = (together + 1) / (expected[i] * expected[j] / seen + 1)
                say[i] += sigmoid(heard[j]) * math.log(min(max(lift, 0.05), 50))
            heard = [logit + 0.4 * each for logit, each in zip(logits[x], say, strict=True)]
        assert got[x] == pytest.approx(np.array(heard), abs=1e-4)


def test_earlier_classes_are_scored_in_the_context_they_had():
    method, images = make(context=0.5), batches(0)[0].images
    lifts = []
    for t, classes in enumerate(TASKS):
        method.begin_task(classes)
        for batch in batches(t):
            method.observe(batch)
        method.end_task()
        method.scores(images)
        lifts.append(method.lifts[len(method.words)].clone())
    with torch.no_grad():
        of_first(method, images)
    for count, lift in zip((2, 5, 7), lifts, strict=True):
        torch.testing.assert_close(method.lifts[count], lift)
    twin = make(context=0.5)
    twin.load_state_dict(method.state_dict())
    with torch.no_grad():
        for ours, theirs in zip(of_first(method, images), of_first(twin, images), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_no_graph_means_no_context_either():
    plain, none = learned(adjacency="identity", context=0.4), learned(adjacency="identity", context=0.0)
    images = batches(0)[0].images
    with torch.no_grad():
        torch.testing.assert_close(plain.scores(images), none.scores(images))


def test_intra_task_blocks_alone_leave_no_relation_between_tasks():
    method = learned(blocks="intra", mix=0.3)
    a = method.adjacency.dense().numpy()
    task = np.array([t for t, names in enumerate(TASKS) for _ in names])
    apart = task[:, None] != task[None, :]
    assert not a[apart].any() and (a[~apart] > 0).all()
    with torch.no_grad():
        images = batches(0)[0].images
        before = method.scores(images)
        method.acm.sum_zy += 1  # what links the last task to the others
        torch.testing.assert_close(method.scores(images), before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_host_sync_in_a_step_on_the_gpu(precision):
    device = torch.device("cuda")
    config = Config.make({"precision": precision})
    setting = Setting.of(config, lambda labels: torch.from_numpy(embed(labels)[0]).to(device), device)
    assert_never_waits_for_the_gpu(AGCN(setting, config.method_options), TASKS, batches)
