"""The correlation matrix against counting with a pencil: one image, one pair of classes at a time."""

import numpy as np
import pytest
import torch
from waiting import no_waiting

from lifelabel.graph import ACM
from lifelabel.streams import scenes


def slow_block(y: np.ndarray, z: np.ndarray, new_old: str):
    """Eq. 5-7 as they are printed: loops over images and classes, nothing else."""
    images, new = y.shape
    old = z.shape[1]
    n_j = [sum(y[x, j] for x in range(images)) for j in range(new)]
    b = [[0.0] * new for _ in range(new)]
    r = [[0.0] * new for _ in range(old)]
    q = [[0.0] * old for _ in range(new)]
    for j in range(new):
        for i in range(new):
            n_ij = sum(y[x, i] * y[x, j] for x in range(images))
            b[i][j] = 1.0 if i == j else (n_ij / n_j[j] if n_j[j] else 0.0)
        for i in range(old):
            together = sum(z[x, i] * y[x, j] for x in range(images))
            total = sum(z[x, i] for x in range(images))
            r[i][j] = together / n_j[j] if n_j[j] else 0.0
            q[j][i] = (r[i][j] * n_j[j] / total if total else 0.0) * (0.5 if new_old == "halved" else 1)
    return np.array(b), np.array(r).reshape(old, new), np.array(q).reshape(new, old)


def random_task(rng, images, new, old):
    return (rng.random((images, new)) < 0.4).astype(float), rng.random((images, old))


@pytest.mark.parametrize("new_old", ["bayes", "halved"])
def test_three_tasks_equal_the_slow_computation(new_old):
    rng = np.random.default_rng(0)
    acm = ACM(new_old)
    expected = np.zeros((0, 0))
    for new in (3, 2, 4):
        old = len(expected)
        y, z = random_task(rng, 30, new, old)
        acm.begin_task(new)
        for first in range(0, 30, 7):  # ragged batches
            acm.update(torch.tensor(y[first : first + 7]), torch.tensor(z[first : first + 7]))
        b, r, q = slow_block(y, z, new_old)
        expected = np.block([[expected, r], [q, b]])
        np.testing.assert_allclose(acm.matrix().numpy(), expected, atol=1e-12, rtol=0)


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


def test_true_labels_of_the_scenes_give_the_frequencies_of_the_images_each_task_saw():
    stream = scenes.build(scenes.ScenesOptions(train_images=3000))
    acm, labels = ACM(), stream.train.labels.dense().astype(float)
    for task in stream.tasks:
        seen = labels[stream.train.rows[task.index]]
        acm.begin_task(len(task.classes))
        for rows in np.array_split(seen, 40):
            acm.update(torch.tensor(rows[:, task.columns]), torch.tensor(rows[:, : task.first]))
        a = acm.matrix().numpy()
        for j in range(task.first, task.last):
            for i in range(task.last):
                for one, given in ((i, j), (j, i)):
                    holds = seen[seen[:, given] == 1, one]
                    assert a[one, given] == pytest.approx(
                        holds.mean() if len(holds) else float(one == given), abs=1e-12
                    )


def test_online_equals_batch_and_bayes_holds():
    rng = np.random.default_rng(2)
    y, z = random_task(rng, 200, 5, 6)
    online, batch = ACM(), ACM()
    for acm, size in ((online, 1), (batch, 200)):
        acm.begin_task(6)
        acm.begin_task(5)
        for first in range(0, 200, size):
            acm.update(torch.tensor(y[first : first + size]), torch.tensor(z[first : first + size]))
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


def test_a_task_ends_with_the_batches_after_the_last_look():
    acm = ACM()
    acm.begin_task(2)
    acm.update(torch.tensor([[1, 1], [0, 1]]))  # nobody calls matrix() before the next task
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
    assert a[:2, 3:].abs().sum() == 0  # new classes never seen
    assert a[2:, 0].abs().sum() == 0  # an old class the expert never believed in


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


def test_soft_labels_are_held_to_the_share_the_stream_has_shown():
    acm = ACM("stream", prevalence=2.0)
    acm.begin_task(2)
    acm.update(torch.tensor([[1, 0], [1, 1], [0, 1], [1, 0]]))  # shown 3 and 2 times
    acm.begin_task(1)
    y = torch.tensor([[1.0], [0.0], [1.0], [1.0]])
    z = torch.tensor([[0.9, 0.1], [0.8, 0.0], [1.0, 0.1], [0.9, 0.0]])
    acm.update(y, z)
    # 8 images so far: class 0 may have a mean of 2 * 3/8 = 0.75 where it has 0.9, class 1 one of 0.5 and has 0.05
    scale = 0.75 / 0.9
    r0, r1 = scale * (0.9 + 1.0 + 0.9) / 3, 0.2 / 3
    q0, q1 = scale * 2.8 / (3 + scale * 3.6), 0.2 / (2 + 0.2)
    expected = [[1, 1 / 2, r0], [1 / 3, 1, r1], [q0, q1, 1]]
    np.testing.assert_allclose(acm.matrix().numpy(), expected, atol=1e-7)
    np.testing.assert_allclose(acm.expected_so_far().numpy(), [3 + scale * 3.6, 2.2, 3], atol=1e-6)
    lift = acm.log_lift(torch.tensor([0, 0, 1])).numpy()
    assert lift[0, 1] == lift[1, 0] == pytest.approx(np.log((1 + 1) / ((3 + scale * 3.6) * 2.2 / 8 + 1)), abs=1e-6)
    chance = (3 + scale * 3.6) * 3 / 8
    assert lift[0, 2] == lift[2, 0] == pytest.approx(np.log((scale * 2.8 + 1) / (chance + 1)), abs=1e-6)
    before = acm.log_lift(torch.tensor([0, 0, 1]), first=2).numpy()  # as the first task left it: 4 images
    assert before[0, 1] == before[1, 0] == pytest.approx(np.log((1 + 1) / (3 * 2 / 4 + 1)))
    assert lift.diagonal().tolist() == [0, 0, 0]


@pytest.mark.parametrize("more", [{}, {"prevalence": 0.5}])
def test_state_goes_round_in_the_middle_of_a_stream(more):
    acm = ACM("stream", **more)
    other = ACM("stream", **more)
    for t, new in enumerate((2, 2, 1)):
        acm.begin_task(new)
        acm.update(torch.ones(3, new), torch.full((3, 2 * t), 0.7) if t else None)
    other.load_state_dict(acm.state_dict())
    for each in (acm, other):
        each.update(torch.ones(2, 1), torch.full((2, 4), 0.2))
        each.begin_task(2)
        each.update(torch.ones(2, 2), torch.full((2, 5), 0.2))
    assert torch.equal(acm.matrix(), other.matrix())
    task = torch.tensor([0, 0, 1, 1, 2, 3, 3])
    assert torch.equal(acm.log_lift(task), other.log_lift(task))


def test_state_goes_round():
    acm = ACM("halved")
    acm.begin_task(2)
    acm.update(torch.tensor([[1, 1], [0, 1]]))
    acm.begin_task(2)
    acm.update(torch.tensor([[1, 0]]), torch.tensor([[0.25, 0.5]]))
    other = ACM("halved")
    other.load_state_dict(acm.state_dict())
    for each in (acm, other):
        each.update(torch.tensor([[1, 1]]), torch.tensor([[0.5, 1.0]]))
    assert torch.equal(acm.matrix(), other.matrix())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_no_host_sync_on_the_gpu():
    acm = ACM(device="cuda")
    acm.begin_task(3)
    acm.update(torch.ones(4, 3, device="cuda"))
    acm.begin_task(2)
    y, z = torch.ones(4, 2, device="cuda"), torch.rand(4, 3, device="cuda")
    with no_waiting():
        acm.update(y, z)
        a = acm.matrix()
    assert a.shape == (5, 5)
