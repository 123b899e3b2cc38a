"""The correlation matrix against a slow computation: one image and one pair of classes at a time."""

import numpy as np
import pytest
import torch
from support.no_waiting import no_waiting

from lifelabel.nn.graph import ACM, CalibratedACM
from lifelabel.streams import scenes


def slow_block(y: np.ndarray, z: np.ndarray, known: np.ndarray, halve: bool = False):
    """Eq. 5-7 with loops. P(C_i | C_j) is over the images in which label i is known; soft labels are always known."""
    images, new = y.shape
    old = z.shape[1]
    b = np.eye(new)
    r = np.zeros((old, new))
    q = np.zeros((new, old))
    for j in range(new):
        n_j = 0.0
        for x in range(images):
            n_j += y[x, j] if known[x, j] else 0
        for i in range(new):
            n_ij = n_j_if_i_known = 0.0
            for x in range(images):
                if known[x, i] and known[x, j]:
                    n_ij += y[x, i] * y[x, j]
                    n_j_if_i_known += y[x, j]
            if i != j:
                b[i, j] = n_ij / n_j_if_i_known if n_j_if_i_known else 0
        for i in range(old):
            joint = total = 0.0
            for x in range(images):
                if known[x, j]:
                    joint += z[x, i] * y[x, j]
                    total += z[x, i]
            r[i, j] = joint / n_j if n_j else 0
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


def test_a_class_of_which_no_label_is_known_has_entries_of_zero():
    rng = np.random.default_rng(4)
    acm = ACM()
    acm.begin_task(2)
    y, z = random_task(rng, 20, 2, 0)
    count(acm, y, z)
    acm.begin_task(3)
    y, z = random_task(rng, 20, 3, 2)
    known = np.ones(y.shape, bool)
    known[:, 1] = False
    count(acm, y, z, known)
    a = acm.matrix().numpy()
    assert np.isfinite(a).all()
    others = [0, 1, 2, 4]
    assert a[3, 3] == 1 and not a[3, others].any() and not a[others, 3].any()
    b, r, q = slow_block(y[:, [0, 2]], z, known[:, [0, 2]])  # the other classes do not depend on it
    np.testing.assert_allclose(a[np.ix_(others, others)][2:], np.block([q, b]), atol=1e-12, rtol=0)
    np.testing.assert_allclose(a[np.ix_(others, others)][:2, 2:], r, atol=1e-12, rtol=0)


def test_an_unknown_label_has_no_meaning():
    rng = np.random.default_rng(5)
    y, z = random_task(rng, 30, 3, 2)
    known = rng.random(y.shape) < 0.6
    matrices = []
    for labels in (y, np.where(known, y, 0), np.where(known, y, 1)):
        acm = ACM()
        acm.begin_task(2)
        acm.begin_task(3)
        count(acm, labels, z, known)
        matrices.append(acm.matrix())
    assert torch.equal(matrices[0], matrices[1]) and torch.equal(matrices[0], matrices[2])


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


def test_true_labels_of_the_scenes_give_the_frequencies_of_the_images_of_each_task():
    stream = scenes.build(scenes.ScenesOptions(train_images=3000))
    acm, labels = ACM(), stream.train.labels.dense().astype(float)
    for task in stream.tasks:
        seen = labels[stream.train.rows[task.index]]
        acm.begin_task(len(task.classes))
        for rows in np.array_split(seen, 40):
            acm.update(torch.tensor(rows[:, task.columns]), torch.tensor(rows[:, : task.offset]))
        a = acm.matrix().numpy()
        for j in range(task.offset, task.end):
            for i in range(task.end):
                for one, given in ((i, j), (j, i)):
                    has = seen[seen[:, given] == 1, one]
                    assert a[one, given] == pytest.approx(has.mean() if len(has) else float(one == given), abs=1e-12)


def test_online_equals_batch_and_bayes_holds():
    rng = np.random.default_rng(2)
    y, z = random_task(rng, 200, 5, 6)
    online, batch = ACM(), ACM()
    for acm, size in ((online, 1), (batch, 200)):
        acm.begin_task(6)
        acm.begin_task(5)
        count(acm, y, z, size=size)
    torch.testing.assert_close(online.matrix(), batch.matrix(), atol=1e-12, rtol=0)
    a, n_j, sum_z = batch.matrix(), y.sum(0), z.sum(0)
    r, q = a[:6, 6:].numpy(), a[6:, :6].numpy()
    np.testing.assert_allclose(q.T * sum_z[:, None], r * n_j, atol=1e-10)


def test_old_old_is_frozen():
    acm = ACM()
    acm.begin_task(3)
    acm.update(torch.tensor([[1, 1, 0], [0, 1, 1]]))
    before = acm.matrix().clone()
    acm.begin_task(2)
    acm.update(torch.ones(4, 2), torch.rand(4, 3))
    assert torch.equal(acm.matrix()[:3, :3], before)


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


def test_a_restored_matrix_continues_to_the_bit():
    acm = ACM(halve=True)
    acm.begin_task(2)
    acm.update(torch.tensor([[1, 1], [0, 1]]))
    acm.begin_task(2)
    acm.update(torch.tensor([[1, 0]]), torch.tensor([[0.25, 0.5]]), torch.tensor([[True, False]]))
    other = ACM(halve=True)
    state = acm.state_dict()
    other.load_state_dict(state)
    before = {name: value.clone() for name, value in state.items()}
    for each in (acm, other):
        each.update(torch.tensor([[1, 1]]), torch.tensor([[0.5, 1.0]]), torch.tensor([[False, True]]))
    assert torch.equal(acm.matrix(), other.matrix())
    assert all(torch.equal(value, before[name]) for name, value in state.items())  # the state is not changed


@pytest.mark.parametrize(
    "make", [ACM, lambda: CalibratedACM(prevalence=1.0, over_stream=True)], ids=["published", "calibrated"]
)
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


def test_bytes_are_those_of_all_tensors():
    acm = ACM()
    acm.begin_task(2)
    acm.begin_task(3)
    assert acm.nbytes == 8 * (5 * 5 + 3 * 3 + 2 * 3 + 2 + 3 * 3 + 2 * 3 + 3)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [None, {"prevalence": 1.0, "over_stream": True}], ids=["published", "calibrated"])
def test_no_host_sync_on_the_gpu(options):
    acm = CalibratedACM("cuda", **options) if options else ACM("cuda")
    acm.begin_task(3)
    acm.update(torch.ones(4, 3, device="cuda"))
    acm.begin_task(2)
    y, z = torch.ones(4, 2, device="cuda"), torch.rand(4, 3, device="cuda")
    known = torch.rand(4, 2, device="cuda") < 0.5
    with no_waiting():
        acm.update(y, z)
        acm.update(y, z, known)
        a = acm.matrix()
    assert a.shape == (5, 5)
