"""AGCN against the paper and the authors' code, computed slowly: loops, logarithms, no parts of the package."""

import copy
import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from support import methods
from support.methods import TASKS, same

from lifelabel.config.config import Config
from lifelabel.engine.setup import make_setting
from lifelabel.errors import UserError
from lifelabel.methods import Batch
from lifelabel.methods.agcn import AGCN
from lifelabel.nn import losses
from lifelabel.nn.graph import ACM, CalibratedACM, LabelRelations, embed

IMAGES = 6


def make(fidelity="tuned", **more):
    torch.manual_seed(0)
    config = Config.make({"fidelity": fidelity, "method_options": {"hidden": 16, **more}})
    words = functools.partial(embed, dim=12, norm=config.word_norm)
    setting = make_setting(config, lambda labels: torch.from_numpy(words(labels)[0]), torch.device("cpu"))
    return AGCN(setting, config.method_options)


def scores_by_task(method, images):
    """Scores of the classes of the first task, of the first two tasks, and of all three."""
    return [method.logits(method.features(images), count) for count in (2, 5, 7)]


def batch(images, labels):
    return Batch(images, labels, torch.ones_like(labels, dtype=torch.bool), tuple(map(str, range(labels.shape[1]))))


def batches(task, count=2):
    torch.manual_seed(100 + task)
    new = len(TASKS[task])
    return [batch(torch.randn(IMAGES, 3, 32, 32), (torch.rand(IMAGES, new) < 0.5).float()) for _ in range(count)]


def learn(method, tasks=range(3)):
    for t in tasks:
        method.begin_task(TASKS[t])
        for batch in batches(t):
            method.observe(batch)
        method.end_task()
    return method


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def slow_graph(adjacency, words, w1, w2, activate_output):
    def layer(h, w, activate):
        out = adjacency @ h @ w
        return np.where(out > 0, out, 0.2 * out) if activate else out

    return layer(layer(words, w1, True), w2, activate_output)


class SlowReference:
    """The matrix of Eq. 4-7 and the adjacency of the graph, from all labels so far, one image at a time."""

    def __init__(self, fidelity, mix, prevalence):
        self.fidelity, self.mix, self.prevalence = fidelity, mix, prevalence
        self.tasks = []  # of each earlier task: its hard labels, and the soft labels as they were counted
        self.matrix = np.zeros((0, 0))
        self.adjacency = np.zeros((0, 0))

    def after(self, ys, zs):
        """The matrix after the images of this task so far, with hard labels `ys` and logits `zs` of the expert."""
        new, old = len(ys[0]), len(self.matrix)
        soft = [np.exp(z) / np.exp(z).sum() if self.fidelity == "release" else sigmoid(z) for z in zs]
        if self.fidelity == "tuned":
            soft = self.calibrated(soft, old)
        self.current = ys, soft
        a = np.eye(old + new)
        a[:old, :old] = self.matrix
        for j in range(new):
            n_j = sum(y[j] for y in ys)
            for i in range(new):
                if i != j:
                    start = 1e-6 if self.fidelity == "release" else 0  # the initial N_j of the authors' code
                    a[old + i, old + j] = sum(y[i] * y[j] for y in ys) / (n_j + start) if n_j else 0
            for i in range(old):
                joint = sum(s[i] * y[j] for s, y in zip(soft, ys, strict=True))
                a[i, old + j] = joint / n_j if n_j else 0
                q = joint / (self.expected_images(i) if self.fidelity == "tuned" else sum(s[i] for s in soft))
                a[old + j, i] = q / 2 if self.fidelity == "release" else q
        return a

    def hard_labels(self, i):
        """The hard labels of old class i, of all images of its task."""
        for ys, _ in self.tasks:
            if i < len(ys[0]):
                return [y[i] for y in ys]
            i -= len(ys[0])

    def calibrated(self, soft, old):
        """The soft labels of each old class, scaled so that their mean is at most `prevalence` times its share."""
        images = len(soft) + sum(len(ys) for ys, _ in self.tasks)
        out = [s.copy() for s in soft]
        for i in range(old):
            limit = self.prevalence * sum(self.hard_labels(i)) / images
            mean = sum(s[i] for s in soft) / len(soft)
            for s in out:
                s[i] *= min(1, limit / mean)
        return out

    def expected_images(self, i):
        """Expected images of the stream with old class i: hard labels in its task, soft labels in later ones."""
        later = [s[i] for _, soft in [*self.tasks, self.current] for s in soft if i < len(s)]
        return sum(self.hard_labels(i)) + sum(later)

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
        slow.tasks.append(slow.current)
        np.testing.assert_allclose(method.expert.nodes.numpy(), g, atol=1e-4)


def test_the_step_follows_the_weighted_sum_of_the_losses():
    method = learn(make(lambdas=(2.0, 3.0, 1e5)), [0])
    method.begin_task(TASKS[1])
    first, given = batches(1)
    method.observe(first)
    twin = copy.deepcopy(method)
    parts = method.observe(given)
    z = twin.expert.logits(given.images)
    twin.acm.update(given.labels, z.sigmoid())
    nodes = twin.nodes()
    y_hat = twin.learner.train_features(given.images) @ nodes.T
    expected = {
        "cls": losses.classification(y_hat[:, 2:], given.labels),
        "dst": losses.distillation(y_hat[:, :2], z.sigmoid()),
        "gph": losses.relationship(twin.expert.nodes, nodes[:2]),
    }
    torch.testing.assert_close(parts, {name: part.detach() for name, part in expected.items()})
    (2 * expected["cls"] + 3 * expected["dst"] + 1e5 * expected["gph"]).backward()
    weights, twins = ([*each.learner.backbone.parameters(), *each.graph.parameters()] for each in (method, twin))
    methods.assert_gradient(weights, methods.flat([weight.grad for weight in twins]))


def test_an_earlier_test_set_is_scored_with_the_matrix_of_its_task():
    for kind in ("mixed", "binarised", "raw", "identity"):
        method = make(adjacency=kind, context=0.0)
        adjacencies = [learn(method, [task]).adjacency.dense() for task in range(3)]
        images = batches(0)[0].images
        with torch.no_grad():
            scores = scores_by_task(method, images)
            features = method.learner.eval_features(images)
            for score, a, count in zip(scores, adjacencies, (2, 5, 7), strict=True):
                torch.testing.assert_close(score, features @ method.graph(a, method.words[:count]).T)
            torch.testing.assert_close(scores[-1], method.scores(images))


def unrefined(method, images, num_classes=None):
    return method.learner.eval_features(images) @ method.nodes(num_classes).T


def test_relations_of_all_tasks_need_the_blocks_between_tasks():
    with pytest.raises(UserError, match="uses the blocks between tasks: set"):
        make(context=0.4, relations="all", blocks="intra")


def test_an_earlier_test_set_is_scored_with_the_leading_block_of_the_log_lifts():
    method, images = make(context=0.5, relations="all"), batches(0)[0].images
    log_lifts = []
    for t in range(3):
        learn(method, [t])
        with torch.no_grad():
            method.scores(images)
        log_lifts.append(method.log_lift.clone())
    with torch.no_grad():
        for count, lift, scores in zip((2, 5, 7), log_lifts, scores_by_task(method, images), strict=True):
            assert lift.shape == (count, count) and torch.equal(method.log_lift[:count, :count], lift)
            expected = LabelRelations(0.5).refine_logits(unrefined(method, images, count), lift)
            torch.testing.assert_close(scores, expected, rtol=0, atol=1e-4)
    assert lift[:2, 2:].any() and lift[:5, 5:].any()  # relations of classes of different tasks


def test_scores_follow_the_counts_of_the_current_task():
    """The cached log-lifts are computed again after a step."""
    method, images = learn(make(context=0.5, relations="all"), range(2)), batches(0)[0].images
    method.begin_task(TASKS[2])
    for batch in batches(2):
        method.scores(images)
        method.observe(batch)
        log_lift = method.relations.log_lift(method.acm)
        assert torch.equal(method.scores(images), method.relations.refine_logits(unrefined(method, images), log_lift))


@pytest.mark.parametrize("options", [{"context": 0.0}, {"adjacency": "identity", "context": 0.4}])
def test_without_context_or_without_a_graph_scores_are_not_refined(options):
    method, images = learn(make(**options)), batches(0)[0].images
    assert method.relations is None
    with torch.no_grad():
        assert torch.equal(method.scores(images), unrefined(method, images))


def test_context_does_not_affect_training():
    plain, refined = learn(make(context=0.0)), learn(make(context=0.4, relations="all"))
    for part in ("learner", "acm", "expert"):
        assert same(plain.state_dict()[part], refined.state_dict()[part])


def test_with_intra_blocks_or_relations_classes_of_different_tasks_are_not_related():
    method = learn(make(blocks="intra", mix=0.3))
    a = method.adjacency.dense().numpy()
    task = np.array([t for t, names in enumerate(TASKS) for _ in names])
    apart = task[:, None] != task[None, :]
    assert not a[apart].any() and (a[~apart] > 0).all()
    with torch.no_grad():
        images = batches(0)[0].images
        before = method.scores(images)
        assert not method.log_lift.numpy()[apart].any() and method.log_lift.any()
        method.acm.sum_zy += 1  # the counts that relate the last task to the others
        method.log_lift = None
        torch.testing.assert_close(method.scores(images), before)
    related = learn(make(blocks="all", relations="intra"))
    log_lift = related.relations.log_lift(related.acm).numpy()
    assert related.adjacency.dense().numpy()[apart].any() and log_lift.any() and not log_lift[apart].any()


@pytest.mark.parametrize(
    ("fidelity", "options", "kind", "halve"),
    [
        ("paper", {}, ACM, False),
        ("release", {}, ACM, True),
        ("plain", {}, ACM, True),
        ("tuned", {}, CalibratedACM, False),
        ("tuned", {"new_old": "bayes"}, CalibratedACM, False),
        ("tuned", {"prevalence": None}, CalibratedACM, False),
        ("tuned", {"new_old": "halved", "prevalence": None}, ACM, True),
    ],
)
def test_the_published_matrix_is_used_unless_an_option_calibrates_it(fidelity, options, kind, halve):
    acm = make(fidelity, **options).acm
    assert type(acm) is kind and acm.halve == halve
    if kind is CalibratedACM:
        assert acm.over_stream == (options.get("new_old", "stream") == "stream")
        assert acm.prevalence == options.get("prevalence", 4.0)


@pytest.mark.parametrize("name", ["agcn", "agcn++", "weighted-ridge"])
def test_the_matrix_counts_known_labels(name):
    """P(old class | new class) is that of the labels: 1 and 0."""
    method = methods.learn_first_task(methods.make(name, **methods.small_options(name)), steps=4)
    for step in range(3):
        method.observe(methods.with_old(methods.batch(method, 1, step), (True, False), (True, True)))
    method.end_task()
    matrix, counted = method.matrix(), method.acm.hard_counts().numpy() > 0
    assert counted.any()
    np.testing.assert_allclose(matrix[0, 2:][counted], 1.0)
    np.testing.assert_allclose(matrix[1, 2:][counted], 0.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_recorded_step_of_the_first_pass_is_not_replayed_in_a_later_one():
    method = methods.learn_first_task(methods.make("agcn", device="cuda"))
    given = [methods.batch(method, 1, seed) for seed in range(7)]
    for each in given[:6]:
        method.observe(each)
    before = copy.deepcopy(method.acm.state_dict())
    for each in given[:6]:
        method.observe(dataclasses.replace(each, first_pass=False))
    assert same(method.acm.state_dict(), before)
    method.observe(given[6])
    assert not same(method.acm.state_dict(), before)
