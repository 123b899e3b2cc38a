"""The correlation matrix against a slow computation: one image and one pair of classes at a time."""

import numpy as np
import pytest
import torch

from lifelabel.nn.graph import ACM, CalibratedACM


def slow_block(y, z, known, halve=False):
    """Eq. 5-7 for one pair of classes at a time. P(C_i | C_j) is over the images in which label i is known."""
    new, old = y.shape[1], z.shape[1]
    b, r, q = np.eye(new), np.zeros((old, new)), np.zeros((new, old))
    for j in range(new):
        has = known[:, j] & (y[:, j] == 1)
        for i in range(new):
            counted = has & known[:, i]
            if i != j and counted.any():
                b[i, j] = y[counted, i].mean()
        for i in range(old):
            joint, total = z[has, i].sum(), z[known[:, j], i].sum()
            r[i, j] = joint / has.sum() if has.any() else 0
            q[j, i] = (joint / total if total else 0) * (0.5 if halve else 1)
    return b, r, q


def random_task(rng, images, new, old):
    return (rng.random((images, new)) < 0.4).astype(float), rng.random((images, old))


def count(acm, y, z, known=None, size=7):
    """Update in batches; the last one is smaller."""
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        mask = None if known is None else torch.tensor(known[rows])
        acm.update(torch.tensor(y[rows]), torch.tensor(z[rows]), mask)


@pytest.mark.parametrize("halve", [False, True])
@pytest.mark.parametrize("share_known", [1.0, 0.7, 0.1])
def test_three_tasks_equal_the_slow_computation(share_known, halve):
    rng = np.random.default_rng(0)
    acm = ACM(halve=halve)
    expected = np.zeros((0, 0))
    for new in (3, 2, 4):
        y, z = random_task(rng, 30, new, len(expected))
        known = rng.random(y.shape) < share_known
        known[:, 1] &= share_known > 0.5  # of this class no label is known: its entries are 0
        acm.begin_task(new)
        count(acm, y, z, None if share_known == 1 else known)
        b, r, q = slow_block(y, z, known, halve)
        expected = np.block([[expected, r], [q, b]])
        np.testing.assert_allclose(acm.matrix().numpy(), expected, atol=1e-12, rtol=0)


def test_a_mask_of_known_labels_changes_no_bit_if_all_are_known():
    rng = np.random.default_rng(3)
    plain, masked = ACM(), ACM()
    for new, old in ((3, 0), (2, 3), (4, 5)):
        y, z = random_task(rng, 50, new, old)
        for acm, known in ((plain, None), (masked, np.ones(y.shape, bool))):
            acm.begin_task(new)
            count(acm, y, z, known)
        assert torch.equal(plain.matrix(), masked.matrix())
        for (name, a), b in zip(plain.state_dict().items(), masked.state_dict().values(), strict=True):
            assert torch.equal(a, b), name


def test_soft_labels_near_zero_in_the_images_with_a_known_label_give_probabilities():
    """The expected images with the old class are a difference of two sums, and rounding may make it 0."""
    acm = ACM()
    acm.begin_task(1)
    acm.begin_task(1)
    for soft, known in ((0.1, False), (0.7, False), (1e-20, True), (0.3, False)):
        acm.update(torch.ones(1, 1), torch.tensor([[soft]], dtype=torch.float64), torch.tensor([[known]]))
        assert 0 <= acm.matrix()[1, 0] <= 1


def test_true_labels_give_the_true_conditional_frequencies():
    rng = np.random.default_rng(1)
    labels = (rng.random((500, 9)) < rng.uniform(0.05, 0.6, 9)).astype(float)
    acm = ACM()
    for first, last in ((0, 4), (4, 7), (7, 9)):
        acm.begin_task(last - first)
        for rows in np.array_split(np.arange(500), 13):
            acm.update(torch.tensor(labels[rows, first:last]), torch.tensor(labels[rows, :first]))
    true = np.array([[labels[labels[:, j] == 1, i].mean() for j in range(9)] for i in range(9)])
    np.testing.assert_allclose(acm.matrix().numpy(), true, atol=1e-12, rtol=0)


def test_a_task_includes_the_batches_after_the_last_call_of_matrix():
    acm = ACM()
    acm.begin_task(2)
    acm.update(torch.tensor([[1, 1], [0, 1]]))  # matrix() is not called before the next task
    acm.begin_task(1)
    assert acm.matrix()[:2, :2].tolist() == [[1.0, 0.5], [1.0, 1.0]]


def test_counts_of_zero_give_zeros_and_a_diagonal_of_one():
    acm = ACM()
    acm.begin_task(2)
    acm.begin_task(3)
    acm.update(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 0.5]]))
    a = acm.matrix()
    assert torch.isfinite(a).all()
    assert a.diagonal().tolist() == [1.0] * 5
    assert a[:2, 3:].abs().sum() == 0  # new classes that no image has
    assert a[2:, 0].abs().sum() == 0  # an old class whose soft labels are 0


def test_counts_stay_exact_far_beyond_float32():
    acm = ACM()
    acm.begin_task(2)
    acm.update(torch.ones(1, 2))
    acm.n_ij += 2.0**25
    acm.update(torch.tensor([[1.0, 0.0]]))
    assert acm.n_ij[0, 0] == 2.0**25 + 2


def test_old_classes_need_soft_labels():
    acm = ACM()
    acm.begin_task(2)
    acm.begin_task(1)
    with pytest.raises(ValueError, match="soft labels of the 2 old classes"):
        acm.update(torch.ones(3, 1))
    assert not acm.n_ij.any() and not acm.known_counts.any()  # nothing of the batch is counted


MAKES = pytest.mark.parametrize(
    "make",
    [ACM, lambda: ACM(halve=True), lambda: CalibratedACM(over_stream=True), lambda: CalibratedACM(prevalence=0.5)],
    ids=["published", "halved", "over stream", "prevalence"],
)


@MAKES
def test_a_restored_matrix_continues_to_the_bit(make):
    acm, other = make(), make()
    for t in range(3):
        acm.begin_task(2)
        acm.update(torch.tensor([[1, 1], [0, 1]]), torch.full((2, 2 * t), 0.7), torch.tensor([[True, False]] * 2))
    state = acm.state_dict()
    other.load_state_dict(state)
    before = {name: value.clone() for name, value in state.items()}
    for each in (acm, other):
        each.update(torch.tensor([[1, 1]]), torch.full((1, 4), 0.2), torch.tensor([[False, True]]))
        each.begin_task(1)
        each.update(torch.ones(2, 1), torch.full((2, 6), 0.2))
    for name, value in acm.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert all(torch.equal(value, before[name]) for name, value in state.items())  # the state is not changed
    assert acm.nbytes == sum(value.nbytes for value in acm.state_dict().values())


@MAKES
def test_sums_are_updated_in_place(make):
    """A recorded step writes to the memory that it had when it was recorded."""
    acm = make()
    acm.begin_task(2)
    acm.update(torch.ones(1, 2))
    acm.begin_task(3)
    sums = {name: getattr(acm, name) for name in acm.sums}
    matrix = acm.matrix()
    for known in (None, torch.tensor([[True, False, True]])):
        acm.update(torch.ones(1, 3), torch.full((1, 2), 0.5), known)
    assert all(getattr(acm, name) is value for name, value in sums.items())
    assert acm.matrix() is matrix
    assert all(value.any() for value in sums.values())
