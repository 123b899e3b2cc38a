"""Sums of features by task, and the regression of a task from them, against loops over images."""

import numpy as np
import pytest
import torch

from lifelabel.errors import UserError
from lifelabel.methods import ridge as ridge_module
from lifelabel.methods.ridge import Regression, TaskSums, choose_basis, pack, unpack
from lifelabel.methods.weighted_ridge import RIDGES
from lifelabel.metrics import mean_average_precision


def sums_of(phi, y, others=None, weight=1.0):
    """The regression of a task with these images and labels, and with images of other tasks."""
    phi, y = torch.as_tensor(phi).double(), torch.as_tensor(y).double()
    gram = phi.T @ phi
    total = gram if others is None else gram + torch.as_tensor(others).double().T @ torch.as_tensor(others).double()
    return Regression(total, gram, phi.T @ y, weight)


def draw(images=200, dim=12, classes=3, seed=0):
    """Features with a 1, and labels that depend on them."""
    rng = np.random.default_rng(seed)
    phi = np.hstack([rng.normal(size=(images, dim - 1)), np.ones((images, 1))])
    return phi, (phi @ rng.normal(size=(dim, classes)) + rng.normal(size=(images, classes)) > 0.7).astype(float)


def penalty(system, ridge):
    return ridge * np.trace(system) / len(system) * np.eye(len(system))


@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
def test_weights_solve_the_weighted_system(weight):
    (phi, y), (others, _) = draw(), draw(seed=1)
    system = phi.T @ phi + weight * others.T @ others
    expected = np.linalg.solve(system + penalty(system, 0.3), phi.T @ y)
    solution = sums_of(phi, y, others, weight).solve(0.3)
    np.testing.assert_allclose(solution.weights, expected, rtol=1e-9, atol=1e-12)
    assert [part.shape for part in solution.calibrate()] == [(3,), (3,)]


@pytest.mark.parametrize("images", [5, 11, 200])
@pytest.mark.parametrize("weight", [0.2, 1.0])
def test_scores_of_left_out_images_follow_from_the_mean_leverage(images, weight):
    """Also with fewer images than features, where the leverage is almost 1."""
    (phi, y), (others, _) = draw(images), draw(50, seed=1)
    y[0], y[1] = 0, 1  # each class has an image with it and one without
    for more, ridge in ((others, 0.5), (others, 0.01), (others[:0], 0.01)):
        solution = sums_of(phi, y, more, weight).solve(ridge)
        system = phi.T @ phi + weight * more.T @ more
        inverse = np.linalg.inv(system + penalty(system, ridge))
        h = np.mean([row @ inverse @ row for row in phi])
        assert h < 1
        score = phi @ solution.weights.numpy()
        left_out = y - (y - score) / (1 - h)
        for c in range(3):
            expected = left_out[y[:, c] == 1, c].mean(), left_out[y[:, c] == 0, c].mean()
            assert (solution.with_class[c], solution.without[c]) == pytest.approx(expected, rel=1e-6, abs=1e-8)
        np.testing.assert_allclose(solution.residual, ((y - left_out) ** 2).sum(0), rtol=1e-6)
        if len(more):
            other_h = weight * np.mean([row @ inverse @ row for row in more])
            other = more @ solution.weights.numpy() / (1 - other_h)
            np.testing.assert_allclose(solution.of_others, other.mean(0), rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(solution.square_of_others, (other**2).mean(0), rtol=1e-6)


def leave_one_out(phi, y, ridge):
    """The mean squared error of each image under the regression of the others, with the same penalty."""
    added, errors = penalty(phi.T @ phi, ridge), []
    for i in range(len(phi)):
        rest, labels = np.delete(phi, i, 0), np.delete(y, i, 0)
        w = np.linalg.solve(rest.T @ rest + added, rest.T @ labels)
        errors.append((y[i] - phi[i] @ w) ** 2)
    return np.mean(errors)


def test_the_generalised_error_is_exact_if_all_leverages_are_equal():
    rows = np.array([[1.0]])
    for _ in range(4):
        rows = np.block([[rows, rows], [rows, -rows]])  # orthogonal columns of 1 and -1, 16 images
    phi = rows[:, [1, 2, 4, 7, 8, 11, 0]]  # the constant is last
    y = (np.random.default_rng(0).random((16, 2)) < 0.4).astype(float)
    for ridge in (0.05, 1.0):
        expected = leave_one_out(phi, y, ridge)
        assert sums_of(phi, y).solve(ridge).error.item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("ridge", [0.05, 0.5, 5.0])
def test_the_generalised_error_is_close_to_that_of_leaving_out_each_image(ridge):
    phi, y = draw()
    expected = leave_one_out(phi, y, ridge)
    assert sums_of(phi, y).solve(ridge).error.item() == pytest.approx(expected, rel=0.03)
    residual = ((y - phi @ sums_of(phi, y).solve(ridge).weights.numpy()) ** 2).mean()
    assert residual < expected * 0.99  # the error of the learned images is another one


def scores_of_two_classes(images, share, distance, seed=0):
    """A feature from one of two normal distributions with variance 1, and a constant 1."""
    rng = np.random.default_rng(seed)
    y = (rng.random((images, 1)) < share).astype(float)
    return np.hstack([rng.normal(size=(images, 1)) + distance * y, np.ones((images, 1))]), y


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5])
@pytest.mark.parametrize("distance", [1.0, 2.5])
def test_calibrated_logits_are_those_of_linear_discriminant_analysis(share, distance, monkeypatch):
    monkeypatch.setattr(ridge_module, "_SPREAD", 1.0)
    linear_model = pytest.importorskip("sklearn.linear_model")
    discriminant = pytest.importorskip("sklearn.discriminant_analysis")
    phi, y = scores_of_two_classes(20_000, share, distance)
    solution = sums_of(phi, y).solve(1e-6)
    slope, shift = solution.calibrate()
    score = phi @ solution.weights.numpy()
    lda = discriminant.LinearDiscriminantAnalysis().fit(score, y[:, 0])
    assert slope.item() == pytest.approx(lda.coef_.item(), rel=0.01)
    assert shift.item() == pytest.approx(lda.intercept_.item(), rel=0.01)
    logistic = linear_model.LogisticRegression(C=np.inf).fit(score, y[:, 0])
    assert slope.item() == pytest.approx(logistic.coef_.item(), rel=0.1)
    logits = slope.item() * score[:, 0] + shift.item()
    # the logit of the two distributions: distance * x - distance^2 / 2 + log(share / (1 - share))
    exact = distance * phi[:, 0] - distance**2 / 2 + np.log(share / (1 - share))
    assert np.abs(logits - exact).mean() < 0.15
    assert (1 / (1 + np.exp(-logits))).mean() == pytest.approx(y.mean(), rel=0.05)


def test_calibration_of_a_task_with_few_images_is_that_of_images_that_were_left_out():
    """Learned images have better scores than new ones: probabilities of new images must not be over-confident."""
    rng = np.random.default_rng(0)
    direction = rng.normal(size=(60, 1)) / 60**0.5

    def some(count):
        x = rng.normal(size=(count, 60))
        y = (x @ direction + rng.normal(size=(count, 1)) > 0.8).astype(float)
        return np.hstack([x, np.ones((count, 1))]), y

    (phi, y), (new, truth) = some(120), some(5000)
    solution = sums_of(phi, y).solve(0.2)
    slope, shift = solution.calibrate()
    logits = (new @ solution.weights.numpy() * slope.numpy() + shift.numpy())[:, 0]
    probability = 1 / (1 + np.exp(-logits))
    assert probability.mean() == pytest.approx(truth.mean(), abs=0.06)
    confident = probability > 0.5
    assert confident.sum() > 50 and truth[confident].mean() > probability[confident].mean() - 0.15


def test_a_small_penalty_that_is_lost_in_rounding_is_refused():
    phi, y = draw(images=5)
    with pytest.raises(UserError, match=r"^method\.ridge=1e-300 is too small for these features: give a larger one$"):
        sums_of(phi, y).solve(1e-300)


def moments(x):
    x = torch.as_tensor(np.hstack([x, np.ones((len(x), 1))]))
    return x, x.T @ x


def test_standardised_features_are_divided_by_roots_of_their_deviations():
    rng = np.random.default_rng(0)
    scales = np.array([0.1, 1.0, 10.0, 1e-9, 5.0])
    x, gram = moments(rng.normal(size=(300, 5)) * scales + 3)
    basis = choose_basis(gram, [slice(0, 4)], None)
    found = (x @ basis).numpy()
    deviation = x[:, :4].numpy().std(0)
    median = np.median(deviation[:3])  # without the feature that hardly changes
    expected = 0.5 * np.sqrt(deviation / median)
    np.testing.assert_allclose(found[:, :3].std(0), expected[:3], rtol=1e-6)
    np.testing.assert_allclose(found[:, :4].mean(0), 0, atol=1e-4)
    assert found[:, 3].std() < 1e-3  # a feature that hardly changes does not become large
    np.testing.assert_array_equal(found[:, 4], x[:, 4])  # not in the group
    assert (found[:, 5] == 1).all()


def test_features_that_are_constant_in_the_first_task_do_not_become_large():
    """Most features of the group are 0 in all images, as those of a network with few active units."""
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(300, 8)))
    x[:, :5] = 0
    x, gram = moments(x)
    basis = choose_basis(gram, [slice(0, 8)], None)
    deviation = x[:, 5:8].numpy().std(0)
    expected = 0.5 * np.sqrt(deviation / np.median(deviation))
    np.testing.assert_allclose((x @ basis)[:, 5:8].numpy().std(0), expected, rtol=1e-6)
    later, _ = moments(rng.random((10, 8)))
    assert (later @ basis).abs().max() < 100


def directions_of(basis):
    """The directions of a basis without standardised features, as unit vectors."""
    vectors = basis[:-1, :-1].numpy()
    return vectors / np.linalg.norm(vectors, axis=0)


@pytest.mark.parametrize("count", [5, 8, 20])
def test_directions_are_orthogonal_and_scaled_by_fourth_roots(count):
    """Features of 8 sizes, of which all or some directions are kept. The constant stays."""
    rng = np.random.default_rng(0)
    x, gram = moments(rng.normal(size=(300, 8)) * np.arange(1, 9))
    basis = choose_basis(gram, [], count)
    assert basis.shape == (9, min(count, 8) + 1) and torch.equal((x @ basis)[:, -1], x[:, -1])
    unit = directions_of(basis)
    np.testing.assert_allclose(unit.T @ unit, np.eye(unit.shape[1]), atol=1e-8)
    values = ((x[:, :-1].numpy() @ unit) ** 2).sum(0)
    second = (x @ basis)[:, :-1].T @ (x @ basis)[:, :-1]
    np.testing.assert_allclose(second, np.diag(np.sqrt(values * values.mean())), atol=1e-9 * values.max())


def test_main_directions_have_most_of_the_second_moment():
    """Features of which few directions are large, as those of a network."""
    rng = np.random.default_rng(0)
    mix = np.linalg.qr(rng.normal(size=(100, 100))).Q
    x, gram = moments(rng.normal(size=(400, 100)) * np.arange(1, 101) ** -1.0 @ mix)
    unit = directions_of(choose_basis(gram, [], 40))
    best = np.linalg.eigvalsh(gram[:-1, :-1].numpy())[::-1][:40].sum()
    assert 0.98 * best < ((x[:, :-1].numpy() @ unit) ** 2).sum() <= best * (1 + 1e-9)


def test_fewer_images_than_directions():
    rng = np.random.default_rng(0)
    x, gram = moments(rng.normal(size=(4, 30)))
    basis = choose_basis(gram, [], 20)
    unit = directions_of(basis)
    np.testing.assert_allclose(unit.T @ unit, np.eye(20), atol=1e-8)
    # nothing of the images is lost
    np.testing.assert_allclose(((x[:, :-1].numpy() @ unit) ** 2).sum(1), (x[:, :-1] ** 2).sum(1), rtol=1e-3)
    assert torch.equal(basis, choose_basis(gram, [], 20))
    order = torch.as_tensor(rng.permutation(4))
    again = choose_basis(x[order].T @ x[order], [], 20)
    # the directions of either are the same up to a rotation
    np.testing.assert_allclose((x @ again) @ (x @ again).T, (x @ basis) @ (x @ basis).T, rtol=1e-6)


def test_the_chosen_ridge_holds_with_fewer_images_than_directions():
    """Images whose features fall off as those of a network: the ridge that is chosen, against the best of all."""
    losses = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        mix, heads = np.linalg.qr(rng.normal(size=(300, 300))).Q, rng.normal(size=(12, 8))
        sets = []
        for count in (60, 1000):
            z = rng.normal(size=(count, 300)) * np.arange(1, 301) ** -0.5
            labels = z[:, :12] @ heads + 0.5 * rng.normal(size=(count, 8)) > 0.5
            sets.append((moments(z @ mix)[0], torch.tensor(labels)))
        (x, y), (new, expected) = sets
        basis = choose_basis(x.T @ x, [], 100)
        gram = (x @ basis).T @ (x @ basis)
        regression = Regression(gram, gram, (x @ basis).T @ y.double(), 0.2)
        solutions = {ridge: regression.solve(ridge) for ridge in (*RIDGES, *(3 * ridge for ridge in RIDGES))}
        mAP = {r: mean_average_precision(new @ basis @ each.weights, expected) for r, each in solutions.items()}
        chosen = 3 * min(RIDGES, key=lambda ridge: solutions[ridge].error)
        losses.append(max(mAP.values()) - mAP[chosen])
    assert np.mean(losses) < 0.01 and max(losses) < 0.025, losses


# Sums


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 50, 51])
def test_a_packed_matrix_is_its_triangle(size):
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = matrix + matrix.T
    packed = pack(matrix)
    even = size + size % 2
    assert packed.numel() == even * (even + 1) // 2
    assert torch.equal(unpack(packed, size), matrix)
    assert set(matrix.flatten().tolist()) <= set(packed.flatten().tolist())
    assert torch.equal(pack(unpack(packed, size)), packed)
    assert pack(matrix.float()).dtype == unpack(packed.float(), size).dtype == torch.float32
    # a sum of products is symmetric up to rounding: what is unpacked is symmetric to the bit
    unpacked = unpack(pack(matrix + 1e-6 * torch.rand(size, size)), size)
    assert torch.equal(unpacked, unpacked.T)


def features(count, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([torch.randn(count, dim - 1, generator=generator), torch.ones(count, 1)], 1)


def add(sums, task, count=6, classes=2, share_known=1.0):
    generator = torch.Generator().manual_seed(10 + task)
    known = torch.rand(count, classes, generator=generator) < share_known
    labels = (torch.rand(count, classes, generator=generator) < 0.5).float()
    phi = features(count, sums.dim, task)
    sums.add(phi, labels, known)
    return phi.double(), labels.double(), known


@pytest.mark.parametrize("dim", [4, 5])
@pytest.mark.parametrize("storage", [torch.float64, torch.float32])
def test_sums_of_each_task(dim, storage):
    sums = TaskSums(dim, "cpu", storage)
    given = []
    for task in range(3):
        sums.begin_task(2)
        given.append(add(sums, task, share_known=0.7))
    tolerance = 1e-12 if storage == torch.float64 else 1e-6
    torch.testing.assert_close(sums.total, sum(phi.T @ phi for phi, _, _ in given), rtol=1e-12, atol=1e-12)
    assert sums.total[-1, -1] == 18  # the constant counts images
    for task, (phi, labels, known) in enumerate(given):
        gram, cross = sums.of_task(task)
        complete = phi[known.all(1)]
        assert 0 < len(complete) < 6
        torch.testing.assert_close(gram, complete.T @ complete, rtol=tolerance, atol=tolerance)
        weights = torch.where(known.all(1), 1.0, 0.25).double()
        torch.testing.assert_close(cross, (phi * weights[:, None]).T @ (labels * known), rtol=1e-12, atol=1e-12)
        assert gram.dtype == torch.float64
    assert len(sums.stored) == 2 and all(part.dtype == storage for part in sums.stored)


def test_images_of_a_later_task_may_have_labels_of_earlier_ones():
    sums = TaskSums(5, "cpu")
    sums.begin_task(1)
    first = add(sums, 0, classes=1)
    sums.begin_task(2)
    second = add(sums, 1, classes=3)  # of the first task too
    expected = sum(phi.T @ phi for phi in (first[0], second[0]))
    cross = first[0].T @ first[1] + second[0].T @ second[1][:, :1]

    def check(found):
        torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found[1], cross, rtol=1e-12, atol=1e-12)

    check(sums.of_task(0))  # before it is stored
    restored = TaskSums(5, "cpu")
    restored.load_state_dict(sums.state_dict())
    check(restored.of_task(0))
    for each in (sums, restored):
        each.begin_task(2)
        check(each.of_task(0))
        third = add(each, 2, classes=4)  # of the second task, not of the first
        check(each.of_task(0))
        gram = sum(phi.T @ phi for phi in (second[0], third[0]))
        torch.testing.assert_close(each.of_task(1)[0], gram, rtol=1e-12, atol=1e-12)


def test_a_part_of_the_classes_of_a_task_is_not_counted():
    """Labels of the last three of four classes: the first task of two classes has one column only."""
    sums, other = TaskSums(5, "cpu"), TaskSums(5, "cpu")
    for each, classes in ((sums, 3), (other, 2)):
        each.begin_task(2)
        add(each, 0)
        each.begin_task(2)
        phi = features(6, 5, 1)
        labels = torch.ones(6, 3)[:, -classes:]
        each.add(phi, labels, labels > 0)
    for task in range(2):
        for a, b in zip(sums.of_task(task), other.of_task(task), strict=True):
            assert torch.equal(a, b)


def test_a_change_of_basis_is_that_of_the_features():
    sums, expected = TaskSums(5, "cpu"), TaskSums(3, "cpu")
    matrix = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for each in (sums, expected):
        each.begin_task(2)
    phi, labels, known = add(sums, 0, share_known=0.7)
    expected.add(phi @ matrix, labels, known)
    sums.change_basis(matrix)
    assert sums.dim == 3
    for name in ("total", "current", "cross"):
        torch.testing.assert_close(getattr(sums, name), getattr(expected, name), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dim", [4, 5])
def test_bytes_are_those_of_all_tasks(dim):
    sums = TaskSums(dim, "cpu", torch.float32)
    for task in range(3):
        sums.begin_task(2)
        add(sums, task)
    counted = sums.nbytes
    sums.end_task()
    assert counted == sums.nbytes == sums.total.nbytes + sums.cross.nbytes + sum(part.nbytes for part in sums.stored)


def test_a_restored_state_shares_no_memory():
    sums, restored = TaskSums(5, "cpu"), TaskSums(5, "cpu")
    sums.begin_task(2)
    add(sums, 0)
    restored.load_state_dict(sums.state_dict())
    before = restored.total.clone()
    add(sums, 1)
    sums.begin_task(1)
    assert torch.equal(restored.total, before) and restored.sizes == [2] and not restored.stored
