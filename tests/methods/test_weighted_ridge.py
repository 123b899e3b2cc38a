"""Weighted ridge against one regression per task over all images at once, with weights counted image by image."""

import numpy as np
import pytest
import torch
from support import methods
from support.methods import TASKS

from lifelabel import train
from lifelabel.errors import UserError
from lifelabel.methods import Batch
from lifelabel.nn.graph import LabelRelations

IMAGES = 24
"""Of each task."""
HALVES = (11, 13)
WIDTH = 64 + 128 + 256 + 256
"""Features of the small backbone: the last map and three stages."""
STAGES = [slice(256, 320), slice(320, 448), slice(448, 704)]


def make(**more):
    return methods.make("weighted-ridge", **{"ridge": 0.5, "directions": 20, "warm_up": 0, **more})


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
            assert method.observe(batch) == {}
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


def test_neither_batches_nor_the_order_of_images_change_scores():
    """More directions than images, and a chosen strength of regularisation."""
    options = {"directions": 300, "ridge": None}
    whole, singly = (learn(make(**options), sizes=sizes) for sizes in (HALVES, (1,) * IMAGES))
    shuffled = make(**options)
    for t, classes in enumerate(TASKS):
        shuffled.begin_task(classes)
        order = torch.from_numpy(np.random.default_rng(t).permutation(IMAGES))
        shuffled.observe(Batch(*(part[order] for part in images_of(t)), classes))
        shuffled.end_task()
    for other in (singly, shuffled):
        assert_close(other.scores(test_images()), whole.scores(test_images()), 1e-6)
        # the slope of a class that cannot be learned is almost 0
        assert_close(values_of(other), values_of(whole), 1e-5)


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


def test_stored_matrices_in_float32_agree_and_take_half_the_memory():
    double, single = (learn(make(storage=storage, context=0)) for storage in ("float64", "float32"))
    assert_close(single.scores(test_images()), double.scores(test_images()), 1e-4)
    assert not torch.equal(single.weights, double.weights)
    # 21 features: the triangle of a 22 x 22 matrix is 11 x 23. The last one is stored when the next task begins
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


def test_features_are_a_list_of_parts():
    assert make(features="map, stages").options.features == ("map", "stages")
    assert make(features="stages").extract.dim == 64 + 128 + 256
    with pytest.raises(UserError, match=r"^unknown value for method\.features 'heads': did you mean 'head'\?"):
        make(features="map,heads")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"directions": 0}, "method.directions must be at least 1, not 0"),
        ({"directions": 100_001}, "method.directions must be at most 100000, not 100001"),
        ({"ridge": 0}, "method.ridge must be more than 0, not 0.0"),
        ({"alpha": 1.5}, "method.alpha must be at most 1, not 1.5"),
        ({"views": 3}, "method.views must be at most 2, not 3"),
        ({"storage": "float16"}, "unknown value for method.storage 'float16'"),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options, line):
    with pytest.raises(UserError, match=f"^{line}"):
        make(**options)


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


def test_a_transformer_trains_with_the_same_command(tmp_path):
    pytest.importorskip("timm")
    done = train(
        tmp_path / "run", method="weighted-ridge", backbone="timm/test_vit", weights="none", device="cpu",
        image_size=64, method_options={"warm_up": 16, "directions": 32}, batch_size=8,
        stream_options={"train_images": 120, "test_images": 40, "classes": 6, "tasks": 3, "size": 64},
    )  # fmt: skip
    assert 0 < done.metrics["final"]["mAP"] < 1 and len(done.metrics["by_task"]) == 3


def moved(task, sizes):
    return [Batch(b.images.cuda(), b.labels.cuda(), b.known.cuda(), b.classes) for b in batches(task, sizes)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("warm_up", [0, 20])
def test_recorded_passes_equal_unrecorded_ones(warm_up, precision):
    sizes = (4,) * 12 + (3,)
    shared = {"device": "cuda", "precision": precision, "lr": 3e-4, "batch_norm": "first-task"}
    recorded, eager = (make(compile=mode, warm_up=warm_up, **shared) for mode in ("auto", "off"))
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
