"""The regression of a task from sums, against loops over images."""

import numpy as np
import pytest
import torch

from lifelabel.errors import UserError
from lifelabel.nn.ridge import Regression, choose_basis


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
    weights, slope, shift = sums_of(phi, y, others, weight).solve(0.3)
    np.testing.assert_allclose(weights, expected, rtol=1e-9, atol=1e-12)
    assert slope.shape == shift.shape == (3,)


@pytest.mark.parametrize("images", [5, 11, 200])
@pytest.mark.parametrize("weight", [0.2, 1.0])
def test_the_leverage_is_the_mean_over_images(images, weight):
    """Also with fewer images than features, where it is almost 1."""
    (phi, y), (others, _) = draw(images), draw(50, seed=1)
    for more, ridge in ((others, 0.5), (others, 0.01), (others[:0], 0.01)):
        regression = sums_of(phi, y, more, weight)
        system = phi.T @ phi + weight * more.T @ more
        inverse = np.linalg.inv(system + penalty(system, ridge))
        expected = np.mean([row @ inverse @ row for row in phi])
        assert regression.leverage(regression.factor(ridge)).item() == pytest.approx(expected, rel=1e-9)
        assert expected < 1


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
        assert sums_of(phi, y).generalised_error(ridge).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("ridge", [0.05, 0.5, 5.0])
def test_the_generalised_error_is_close_to_that_of_leaving_out_each_image(ridge):
    phi, y = draw()
    expected = leave_one_out(phi, y, ridge)
    assert sums_of(phi, y).generalised_error(ridge).item() == pytest.approx(expected, rel=0.03)
    residual = ((y - phi @ sums_of(phi, y).solve(ridge)[0].numpy()) ** 2).mean()
    assert residual < expected * 0.97  # the error of the learned images is another one


def test_the_generalised_error_of_labels_without_a_positive_is_above_zero():
    phi, _ = draw()
    error = sums_of(phi, np.zeros((200, 2))).generalised_error(0.1)
    assert error > 0 and (error / error).isfinite()


def scores_of_two_classes(images, share, distance, seed=0):
    """One feature, drawn from two normal distributions with the variance 1, and a 1."""
    rng = np.random.default_rng(seed)
    y = (rng.random((images, 1)) < share).astype(float)
    return np.hstack([rng.normal(size=(images, 1)) + distance * y, np.ones((images, 1))]), y


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5])
@pytest.mark.parametrize("distance", [1.0, 2.5])
def test_calibrated_logits_are_those_of_linear_discriminant_analysis(share, distance):
    linear_model = pytest.importorskip("sklearn.linear_model")
    discriminant = pytest.importorskip("sklearn.discriminant_analysis")
    phi, y = scores_of_two_classes(20_000, share, distance)
    weights, slope, shift = sums_of(phi, y).solve(1e-6)
    score = phi @ weights.numpy()
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
    weights, slope, shift = sums_of(phi, y).solve(0.2)
    logits = (new @ weights.numpy() * slope.numpy() + shift.numpy())[:, 0]
    probability = 1 / (1 + np.exp(-logits))
    assert probability.mean() == pytest.approx(truth.mean(), abs=0.06)
    confident = probability > 0.6
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
    median = np.sort(deviation)[1]
    expected = 0.5 * np.sqrt(deviation / median)
    np.testing.assert_allclose(found[:, :3].std(0), expected[:3], rtol=1e-6)
    np.testing.assert_allclose(found[:, :4].mean(0), 0, atol=1e-4)
    assert found[:, 3].std() < 1e-3  # a feature that hardly changes does not become large
    np.testing.assert_array_equal(found[:, 4], x[:, 4])  # not in the group
    assert (found[:, 5] == 1).all()


def test_main_directions_are_scaled_by_fourth_roots_and_the_constant_stays():
    rng = np.random.default_rng(0)
    x, gram = moments(rng.normal(size=(300, 8)) * np.arange(1, 9))
    found = (x @ choose_basis(gram, [], 5))[:, :-1].numpy()
    second = found.T @ found
    np.testing.assert_allclose(second - np.diag(np.diag(second)), 0, atol=1e-6 * second.max())
    values = np.linalg.eigvalsh(x[:, :8].numpy().T @ x[:, :8].numpy())[::-1][:5]
    np.testing.assert_allclose(np.diag(second), np.sqrt(values * values.mean()), rtol=1e-9)
    assert (x @ choose_basis(gram, [], 5))[:, -1].eq(1).all()


def test_missing_directions_are_drawn_orthogonal_to_the_found_ones():
    rng = np.random.default_rng(0)
    x, gram = moments(rng.normal(size=(4, 10)))
    basis = choose_basis(gram, [], 8)
    vectors = basis[:-1, :-1].numpy()
    unit = vectors / np.linalg.norm(vectors, axis=0)
    np.testing.assert_allclose(unit.T @ unit, np.eye(8), atol=1e-8)
    np.testing.assert_allclose((x @ basis)[:, 4:8], 0, atol=1e-6)  # they are 0 for the images
    assert torch.equal(basis, choose_basis(gram, [], 8))
    order = torch.as_tensor(rng.permutation(4))
    np.testing.assert_allclose(np.abs(choose_basis(x[order].T @ x[order], [], 8)), np.abs(basis), atol=1e-8)
