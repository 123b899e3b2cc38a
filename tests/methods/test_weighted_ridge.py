"""Weighted ridge against one regression per task over all images at once, with weights counted image by image."""

import copy
import io
import json

import numpy as np
import pytest
import torch
from support.methods import same

from lifelabel import train
from lifelabel.config.config import Config
from lifelabel.engine.setup import make_setting
from lifelabel.errors import UserError
from lifelabel.methods import Batch
from lifelabel.methods.weighted_ridge import WeightedRidge
from lifelabel.nn import losses
from lifelabel.nn.graph import LabelRelations

TASKS = [("sky", "sea"), ("boat", "fish", "sun"), ("tree", "house")]
IMAGES = 24
"""Of each task."""
HALVES = (11, 13)
WIDTH = 64 + 128 + 256 + 256
"""Features of the small backbone: the last map and three stages."""
STAGES = [slice(256, 320), slice(320, 448), slice(448, 704)]


def make(seed=0, device="cpu", precision="fp32", compile="auto", **more):
    torch.manual_seed(seed)
    options = {"ridge": 0.5, "directions": 20, "warm_up": 0, **more}
    config = Config.make(
        {"method": "weighted-ridge", "precision": precision, "compile": compile, "method_options": options}
    )
    return WeightedRidge(make_setting(config, lambda labels: None, torch.device(device)), config.method_options)


def images_of(task, count=IMAGES, share_known=1.0, older=0):
    """Images of a task with labels of its classes and of the `older` classes before it; unknown entries are 0."""
    torch.manual_seed(100 + task)
    shape = count, older + len(TASKS[task])
    labels, known = torch.rand(shape) < 0.4, torch.rand(shape) < share_known
    colour = torch.randn(count, 3, 1, 1)  # images differ, and some labels can be learned
    labels[:, -1] = colour[:, 0, 0, 0] > 0.5
    return torch.randn(count, 3, 32, 32) + colour, (labels & known).float(), known


def batches(task, sizes=HALVES, **more):
    parts = (part.split(sizes) for part in images_of(task, sum(sizes), **more))
    return [Batch(*rows, TASKS[task]) for rows in zip(*parts, strict=True)]


def learn(method, tasks=(0, 1, 2), sizes=HALVES, **more):
    for t in tasks:
        method.begin_task(TASKS[t])
        for batch in batches(t, sizes, **more):
            method.observe(batch)
        method.end_task()
    return method


def test_images(count=9):
    torch.manual_seed(7)
    return torch.randn(count, 3, 32, 32) + torch.randn(count, 3, 1, 1)


test_images.__test__ = False


def assert_close(found, expected, tolerance):
    """Close relative to the largest value."""
    found, expected = np.asarray(found), np.asarray(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def slow_basis(rows, directions):
    """Standard scores with square roots of deviations, then main directions, from the images of the first task."""
    x, mean, scale = rows[:, :-1], np.zeros(WIDTH), np.ones(WIDTH)
    for group in STAGES:
        deviation = x[:, group].std(0)
        median = np.sort(deviation)[(len(deviation) - 1) // 2]
        mean[group] = x[:, group].mean(0)
        scale[group] = 0.5 / np.sqrt(median * np.maximum(deviation, 1e-3 * median))
    if directions is None:
        vectors = np.eye(WIDTH)
    else:
        z = (x - mean) * scale
        # one subspace iteration from fixed random vectors
        generator = torch.Generator().manual_seed(0)
        start = torch.randn(WIDTH, directions, generator=generator, dtype=torch.float64).numpy()
        found = np.linalg.qr(z.T @ (z @ start) + 1e-3 * np.mean((z**2).sum(0)) * start).Q
        values, vectors = np.linalg.eigh((z @ found).T @ (z @ found))
        last = values[::-1][len(x) // 2 - 1 : len(x) // 2]  # two images for each direction with a scale of its own
        smallest = np.maximum(1e-3, (last / values.mean()).sum())
        vectors = found @ vectors * np.maximum(values / values.mean(), smallest) ** -0.25
    basis = np.zeros((WIDTH + 1, vectors.shape[1] + 1))
    basis[:-1, :-1] = scale[:, None] * vectors
    basis[-1, :-1] = -(mean * scale) @ vectors
    basis[-1, -1] = 1
    return basis


def slow_weights(tasks, sizes, alpha, ridge):
    """W of each task. `tasks` has (phi, labels, known) of every image; the labels are those of the last K classes."""
    ends, solved = np.cumsum(sizes), []
    dim = len(tasks[0][0][0])
    for size, end in zip(sizes, ends, strict=True):
        system, cross = np.zeros((dim, dim)), np.zeros((dim, size))
        for t, images in enumerate(tasks):
            for phi, labels, known in images:
                first = ends[t] - len(labels)  # the class of the first column
                begin = end - size - first
                weight, y = alpha, np.zeros(size)
                if 0 <= begin < len(labels) and known[begin : begin + size].all():
                    weight, y = 1.0, labels[begin : begin + size]
                system += weight * np.outer(phi, phi)
                cross += weight * np.outer(phi, y)
        solved.append(np.linalg.solve(system + ridge * np.trace(system) / dim * np.eye(dim), cross))
    return np.hstack(solved)


def observe_and_keep(method, tasks, sizes, older=(0, 0, 0), share_known=1.0):
    """Learn, and return (phi, labels, known) of every image by task, and the raw features of the first task."""
    kept, raw = [], []
    for t, classes in enumerate(tasks):
        method.begin_task(classes)
        kept.append([])
        for batch in batches(t, sizes, older=older[t], share_known=share_known):
            phi = method.features(batch.images).double().numpy()
            raw += list(phi) if t == 0 else []
            kept[t] += zip(phi, batch.labels.double().numpy(), batch.known.numpy(), strict=True)
            method.observe(batch)
        method.end_task()
        if t == 0:
            kept[0] = [(phi @ method.basis.numpy(), y, known) for phi, y, known in kept[0]]
    return kept, np.array(raw)


@pytest.mark.parametrize("sizes", [(IMAGES,), HALVES, (1,) * IMAGES], ids=["whole", "halves", "singly"])
@pytest.mark.parametrize("directions", [None, 20])
@pytest.mark.parametrize("alpha", [1.0, 0.2])
def test_the_sums_over_tasks_equal_one_regression_per_task_on_all_images(alpha, directions, sizes):
    method = make(alpha=alpha, directions=directions)
    kept, raw = observe_and_keep(method, TASKS, sizes)
    expected = slow_basis(raw, directions)
    signs = np.sign((method.basis.numpy() * expected).sum(0))  # a direction may have either sign
    assert_close(method.basis, expected * signs, 1e-7)
    images = batches(1)[0].images
    phi = np.hstack([method.extract(images).double().numpy(), np.ones((len(images), 1))])
    assert_close(method.features(images), phi @ expected * signs, 1e-5)
    w = slow_weights(kept, [2, 3, 2], alpha, 0.5)
    assert_close(method.weights, w, 1e-8)
    logits = method.features(images).double().numpy() @ w * method.slope.numpy() + method.shift.numpy()
    assert_close(method.calibrated(method.features(images)), logits, 1e-6)


@pytest.mark.parametrize("alpha", [1.0, 0.2, 0.0])
def test_an_image_counts_for_a_task_if_all_its_labels_are_known(alpha):
    method = make(alpha=alpha)
    kept, _ = observe_and_keep(method, TASKS, HALVES, share_known=0.8)
    partly = [0 < sum(not known.all() for _, _, known in images) < IMAGES for images in kept]
    assert all(partly)
    assert_close(method.weights, slow_weights(kept, [2, 3, 2], alpha, 0.5), 1e-8)


@pytest.mark.parametrize("share_known", [1.0, 0.8])
def test_labels_of_older_classes_count_for_their_tasks(share_known):
    """Images of later tasks have the labels of all classes so far."""
    method = make()
    kept, _ = observe_and_keep(method, TASKS, HALVES, older=(0, 2, 5), share_known=share_known)
    assert_close(method.weights, slow_weights(kept, [2, 3, 2], 0.2, 0.5), 1e-8)
    restored = make()
    restored.load_state_dict(torch.load(bits(method.state_dict()), weights_only=True))
    for each in (method, restored):
        each.begin_task(("grass",))  # stores the matrices
        each.observe(Batch(*images_of(0)[:1], torch.zeros(IMAGES, 1), torch.ones(IMAGES, 1).bool(), ("grass",)))
        each.end_task()
    assert same(method.state_dict(), restored.state_dict())
    phi = [method.features(images_of(0)[0]).double().numpy()]
    kept.append([(row, np.zeros(1), np.ones(1, bool)) for row in phi[0]])
    assert_close(method.weights[:, :7], slow_weights(kept, [2, 3, 2, 1], 0.2, 0.5)[:, :7], 1e-8)


@pytest.mark.parametrize("ridge", [None, 0.5])
@pytest.mark.parametrize("directions", [None, 20, 300], ids=["all", "fewer", "more-than-images"])
def test_neither_batches_nor_the_order_of_images_change_scores(directions, ridge):
    methods = [learn(make(directions=directions, ridge=ridge), sizes=sizes) for sizes in (HALVES, (1,) * IMAGES)]
    shuffled = make(directions=directions, ridge=ridge)
    for t, classes in enumerate(TASKS):
        shuffled.begin_task(classes)
        order = torch.from_numpy(np.random.default_rng(t).permutation(IMAGES))
        shuffled.observe(Batch(*(part[order] for part in images_of(t)), classes))
        shuffled.end_task()
    again = learn(make(directions=directions, ridge=ridge))
    expected, singly, other_order, same_run = (m.scores(test_images()) for m in (*methods, shuffled, again))
    assert expected.isfinite().all() and torch.equal(expected, same_run)
    assert_close(singly, expected, 1e-6)
    assert_close(other_order, expected, 1e-6)
    # the slope of a class that cannot be learned is almost 0
    assert_close(values_of(methods[1]), values_of(methods[0]), 1e-5)
    assert_close(values_of(shuffled), values_of(methods[0]), 1e-5)


def values_of(method):
    """The values of the regression for test images, before the calibration."""
    return method.features(test_images()).double() @ method.weights


def test_the_order_of_later_tasks_does_not_matter():
    straight, swapped = learn(make(context=0)), learn(make(context=0), (0, 2, 1))
    columns = [0, 1, 5, 6, 2, 3, 4]
    assert_close(swapped.scores(test_images()), straight.scores(test_images())[:, columns], 1e-6)
    assert_close(values_of(swapped), values_of(straight)[:, columns], 1e-6)
    first = learn(make(context=0), (1, 0, 2))  # the statistics of the first task do matter
    assert not np.allclose(values_of(first)[:, 5:], values_of(straight)[:, 5:], rtol=1e-3)


def bits(state):
    """A state as `torch.save` writes it."""
    out = io.BytesIO()
    torch.save(state, out)
    out.seek(0)
    return out


def test_scores_during_the_warm_up_do_not_change_the_features():
    """The engine computes scores before it writes a checkpoint, at any step."""
    expected, scored = (make(warm_up=12) for _ in range(2))
    for method in (expected, scored):
        torch.manual_seed(3)
        method.begin_task(TASKS[0])
        for batch in batches(0, (6, 6, 6, 6)):
            method.observe(batch)
            if method is scored:
                assert torch.equal(method.scores(batch.images), torch.zeros(6, 2))
        method.end_task()
    assert torch.equal(scored.scores(test_images()), expected.scores(test_images()))


def test_the_warm_up_trains_whole_batches_then_freezes():
    method, plain = make(warm_up=6), make()  # the second batch of five crosses the border
    first, second, *rest = batches(0, (5, 5, 7, 7))
    before = copy.deepcopy(method.backbone.state_dict())
    for each in (method, plain):
        each.begin_task(TASKS[0])
    for batch in (first, second):
        learner = copy.deepcopy(method.warm_up.training.learner)
        logits = learner.head(learner.train_features(batch.images))
        expected = losses.classification(logits, batch.labels, method.setting.reduction, batch.known)
        assert method.observe(batch)["cls"].item() == pytest.approx(expected.item())
    trained = copy.deepcopy(method.backbone.state_dict())
    assert not same(before, trained) and method.warm_up.training is None and not method.sums.total.any()
    plain.backbone.load_state_dict(trained)  # the images of the warm-up are not part of the sums
    for each in (method, plain):
        for batch in rest:
            assert each.observe(batch) == {}
        each.end_task()
        learn(each, [1, 2])
    assert same(trained, method.backbone.state_dict())
    assert all(p.grad is None and not p.requires_grad for p in method.backbone.parameters())
    assert torch.equal(plain.weights, method.weights)
    assert torch.equal(plain.scores(test_images()), method.scores(test_images()))


def test_stored_matrices_in_float32_agree_and_take_half_the_memory():
    double, single = (learn(make(storage=storage, context=0)) for storage in ("float64", "float32"))
    assert_close(single.scores(test_images()), double.scores(test_images()), 1e-4)
    assert not torch.equal(single.weights, double.weights)
    stored = [sum(part.nbytes for part in method.sums.stored) for method in (double, single)]
    assert stored == [
        2 * 11 * 23 * 8,
        2 * 11 * 23 * 4,
    ]  # 21 features: the triangle of a 22 x 22 matrix would be 11 x 23
    assert single.sums.total.dtype == single.sums.current.dtype == torch.float64
    # the matrices of three tasks: the one of the last task is stored when the next one begins
    assert double.footprint().bytes - single.footprint().bytes == 3 * 11 * 23 * 4


def test_the_chosen_ridge_has_the_smallest_errors_of_all_tasks():
    method = make(ridge=None)
    total, candidates = np.zeros(8), [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
    for t in range(3):
        learn(method, [t])
        regression = method._regression(t)
        errors = np.array([regression.solve(ridge).error.item() for ridge in candidates])
        total += errors / errors.min()
        best = 3 * candidates[total.argmin()]
        expected = torch.cat([method._regression(task).solve(best).weights for task in range(t + 1)], 1)
        assert torch.equal(method.weights, expected)
    assert method.errors.shape == (3, 8) and method.ridge == best and np.allclose(method.errors.sum(0), total)
    assert len(learn(make(ridge=0.5)).errors) == 0


def test_validation_images_choose_the_ridge_in_place_of_left_out_ones():
    """By their squared error for the classes of the task, of the images whose labels of them are all known."""
    method = learn(make(ridge=None), [0, 1])
    images, labels, known = images_of(1, 40, share_known=0.9)
    features, before = method.features(images), method.errors.clone()
    used = known.all(1)
    assert 10 < used.sum() < 40
    expected = []
    for ridge in [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]:
        found = features[used].double() @ method._regression(1).solve(3 * ridge).weights
        expected.append(np.mean((found - labels[used]).numpy() ** 2))
    method.validate(features, labels, known)
    assert torch.equal(method.errors[0], before[0])
    assert_close(method.errors[1], np.array(expected) / min(expected), 1e-9)
    assert torch.equal(method.weights[:, :2], method._regression(0).solve(method.ridge).weights)
    kept = method.errors.clone()
    method.validate(features, 0 * labels, known)  # no image has a class: nothing can be compared
    assert torch.equal(method.errors, kept)
    fixed = learn(make(ridge=0.5), [0])
    fixed.validate(features, labels[:, :2], known[:, :2])
    assert fixed.ridge == 0.5 and not len(fixed.errors)


def test_label_relations_refine_calibrated_logits():
    plain, refined = learn(make(context=0)), learn(make(context=0.7))
    images = test_images()
    calibrated = plain.calibrated(plain.features(images))
    assert torch.equal(plain.scores(images), calibrated)
    assert torch.equal(refined.calibrated(refined.features(images)), calibrated)
    lift = refined.relations.log_lift(refined.acm)
    assert (lift >= 0).all() and (lift > 0).any()
    assert torch.equal(refined.scores(images), LabelRelations(0.7).refine_logits(calibrated, lift))
    assert not torch.equal(refined.scores(images), calibrated)
    earlier = refined.logits(refined.features(images), 5)  # as if there were no other classes
    assert torch.equal(earlier, LabelRelations(0.7).refine_logits(calibrated[:, :5], lift[:5, :5]))
    # the same counts with negative log-lifts: some are below 0, the others are the same
    signed = LabelRelations(0.7)
    signed.frozen = refined.relations.frozen
    full = signed.log_lift(refined.acm)
    assert (full < 0).any() and torch.equal(full.clamp(min=0), lift)


def test_the_matrix_counts_hard_labels_and_calibrated_probabilities():
    method = learn(make(context=0), [0])
    method.begin_task(TASKS[1])
    soft, hard = [], []
    for batch in batches(1):
        soft.append(method.calibrated(method.features(batch.images)).sigmoid().double())
        hard.append(batch.labels.double())
        method.observe(batch)
    method.end_task()
    soft, hard = torch.cat(soft).numpy(), torch.cat(hard).numpy()
    assert method.matrix().shape == (5, 5)
    np.testing.assert_allclose(method.matrix()[:2, 2:], soft.T @ hard / hard.sum(0), rtol=1e-6)


def test_during_a_task_new_classes_have_the_logit_zero_and_old_ones_do_not_change():
    method = make(context=0)
    images = test_images()
    method.begin_task(TASKS[0])
    method.observe(batches(0)[0])
    assert torch.equal(method.scores(images), torch.zeros(9, 2)) and not method.fixed_features
    method.observe(batches(0)[1])
    method.end_task()
    assert method.fixed_features
    before = method.scores(images)
    method.begin_task(TASKS[1])
    for batch in batches(1):
        method.observe(batch)
        scores = method.scores(images)
        assert torch.equal(scores[:, :2], before) and torch.equal(scores[:, 2:], torch.zeros(9, 3))
        assert method.fixed_features


def test_a_backbone_without_the_features_is_refused():
    with pytest.raises(UserError, match=r"^this backbone has no head: add 'map' to method\.features$"):
        make(features=("head",))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"directions": 0}, "method.directions must be at least 1, not 0"),
        ({"directions": 100_001}, "method.directions must be at most 100000, not 100001"),
        ({"ridge": 0}, "method.ridge must be more than 0, not 0.0"),
        ({"ridge": -1.0}, "method.ridge must be more than 0, not -1.0"),
        ({"alpha": 1.5}, "method.alpha must be at most 1, not 1.5"),
        ({"views": 3}, "method.views must be at most 2, not 3"),
        ({"storage": "float16"}, "unknown value for method.storage 'float16'"),
        ({"features": "map,heads"}, "unknown value for method.features 'heads': did you mean 'head'?"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_options_out_of_range_are_refused(options, line):
    with pytest.raises(UserError) as refused:
        make(**options)
    assert str(refused.value).startswith(line) and "\n" not in str(refused.value)


def test_features_are_a_list_of_parts():
    assert make(features="map, stages").options.features == ("map", "stages")
    assert make(features="stages").extract.dim == 64 + 128 + 256


def test_a_ridge_that_vanishes_in_rounding_is_refused():
    with pytest.raises(UserError, match=r"method\.ridge=1e-300 is too small"):
        learn(make(ridge=1e-300, directions=None), [0])


@pytest.mark.parametrize("warm_up", [IMAGES, IMAGES + 1])
def test_a_warm_up_with_all_images_is_refused(warm_up):
    expected = f"method.warm_up={warm_up} used all {IMAGES} images of the first task and left none for the regression"
    with pytest.raises(UserError, match=expected):
        learn(make(warm_up=warm_up), [0])


@pytest.mark.parametrize("missing", [slice(1), slice(None)], ids=["one class", "all classes"])
@pytest.mark.parametrize("ridge", [None, 0.5])
def test_a_class_without_a_positive_image_has_finite_scores(ridge, missing):
    method, whole = learn(make(ridge=ridge), [0]), learn(make(ridge=ridge))
    for t in (1, 2):
        method.begin_task(TASKS[t])
        images, labels, known = images_of(t)
        labels[:, missing] = 0 if t == 1 else labels[:, missing]
        method.observe(Batch(images, labels, known, TASKS[t]))
        method.end_task()
    scores, others = method.scores(test_images()), [0, 1, 5, 6]
    assert scores.isfinite().all() and method.errors.isfinite().all()
    assert (scores[:, 2:5][:, missing] < -5).all()  # it is improbable
    if ridge:  # a chosen one depends on all classes
        assert_close(values_of(method)[:, others], values_of(whole)[:, others], 1e-5)


@pytest.mark.parametrize("ridge", [None, 0.5])
def test_a_task_in_which_no_image_has_all_labels_known_has_finite_scores(ridge):
    method = learn(make(ridge=ridge), [0])
    images, labels, known = images_of(1)
    known[torch.arange(IMAGES), torch.arange(IMAGES) % 3] = False
    method.begin_task(TASKS[1])
    method.observe(Batch(images, labels * known, known, TASKS[1]))
    method.end_task()
    assert method.scores(test_images()).isfinite().all() and method.errors.isfinite().all()


def test_a_first_task_of_two_images_has_finite_scores():
    method = learn(make(ridge=None), [0], sizes=(2,))
    learn(method, [1, 2])
    assert method.scores(test_images()).isfinite().all()


def test_fewer_images_than_directions():
    """The images span 24 directions of the features. The other ones are drawn, always the same."""
    method = learn(make(directions=100), [0])
    gram = method.basis[:, :-1].T @ method.basis[:, :-1]
    assert method.basis.shape == (WIDTH + 1, 101) and torch.linalg.matrix_rank(gram) == 100
    again = learn(make(directions=100), [0])
    assert torch.equal(method.basis, again.basis)
    assert learn(make(directions=5000), [0]).basis.shape == (WIDTH + 1, WIDTH + 1)  # there are not more


def test_a_class_that_depends_on_colour_is_learned():
    """The last class of each task is an image that is bright in one colour."""
    method = learn(make(ridge=None, context=0), sizes=(100, 100))
    torch.manual_seed(50)
    colour = torch.randn(200, 3, 1, 1)
    probabilities = method.scores(torch.randn(200, 3, 32, 32) + colour).sigmoid()[:, [1, 4, 6]]
    truth = colour[:, 0, 0, 0] > 0.5
    ranks = probabilities.argsort(0).argsort(0).double()
    positives, negatives = int(truth.sum()), int((~truth).sum())
    area = (ranks[truth].sum(0) - positives * (positives - 1) / 2) / (positives * negatives)
    assert (area > 0.9).all(), area
    assert (probabilities.mean(0) - truth.double().mean()).abs().max() < 0.1


def test_a_run_writes_losses_of_the_warm_up_only(tmp_path):
    options = {"directions": 50, "warm_up": 16}
    done = train(
        tmp_path / "run", method="weighted-ridge", device="cpu", method_options=options, batch_size=8,
        stream_options={"train_images": 200, "test_images": 60},
    )  # fmt: skip
    lines = [json.loads(line) for line in (done.folder / "history.jsonl").read_text().splitlines()]
    assert [list(line["losses"]) for line in lines[:4]] == [["cls"], ["cls"], [], []]
    assert not any(line["losses"] for line in lines[2:])
    assert done.environment["footprint"]["images"] == 0 and done.environment["footprint"]["bytes"] > 0


def test_a_transformer_trains_with_the_same_command(tmp_path):
    pytest.importorskip("timm")
    done = train(
        tmp_path / "run", method="weighted-ridge", backbone="timm/test_vit", weights="none", device="cpu",
        image_size=64, method_options={"warm_up": 16, "directions": 32}, batch_size=8,
        stream_options={"train_images": 120, "test_images": 40, "classes": 6, "tasks": 3, "size": 64},
    )  # fmt: skip
    assert 0 < done.metrics["final"]["mAP"] < 1 and len(done.metrics["by_task"]) == 3


gpu = pytest.mark.gpu
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def moved(task, sizes):
    return [Batch(b.images.cuda(), b.labels.cuda(), b.known.cuda(), b.classes) for b in batches(task, sizes)]


@gpu
@no_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("warm_up", [0, 20])
def test_recorded_passes_equal_unrecorded_ones(warm_up, precision):
    sizes = (4,) * 12 + (3,)
    recorded, eager = (
        make(device="cuda", precision=precision, compile=mode, warm_up=warm_up) for mode in ("auto", "off")
    )
    assert recorded.setting.record and not eager.setting.record
    for method in (recorded, eager):
        for t, classes in enumerate(TASKS):
            torch.manual_seed(t)
            method.begin_task(classes)
            for batch in moved(t, sizes):
                method.observe(batch)
            method.end_task()
    assert recorded.extract.recorder.recorded and not eager.extract.recorder.recorded
    images = test_images(4).cuda()
    # steps by gradient may add up in another order
    assert_close(recorded.scores(images).cpu(), eager.scores(images).cpu(), 5e-2 if warm_up else 1e-4)
