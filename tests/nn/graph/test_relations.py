"""Log-lifts against counts of one pair of classes at a time, and the refinement of logits against loops."""

import math

import numpy as np
import pytest
import torch
from support.no_waiting import no_waiting

from lifelabel.nn.graph import ACM, CalibratedACM, LabelRelations

MATRICES = pytest.mark.parametrize(
    "make",
    [ACM, lambda: CalibratedACM(over_stream=True), lambda: CalibratedACM(prevalence=0.7, over_stream=True)],
    ids=["published", "over stream", "prevalence"],
)


def random_tasks(sizes, images, seed=0, share_known=1.0):
    """For each task: hard labels (images x new), soft labels (images x old) and the mask of known hard labels.

    Labels are dependent: a factor of each image raises the probabilities of some classes.
    """
    rng = np.random.default_rng(seed)
    old = 0
    for new in sizes:
        factor = rng.random((images, 1))
        y = (rng.random((images, new)) < 0.1 + 0.6 * factor).astype(float)
        z = rng.random((images, old)) * factor
        yield y, z, rng.random(y.shape) < share_known
        old += new


def count(acm, y, z, known, batch=50):
    for start in range(0, len(y), batch):
        acm.update(*(torch.tensor(each[start : start + batch]) for each in (y, z, known)))


def slow_task_lifts(y, z, known, scale):
    """Log-lifts of the classes of one task with each other and with old classes: (new x new), (old x new).

    Joint counts and the expected counts of independent classes are over the same images.
    """

    def log_lift(joint, expected):
        return math.log(min(max((joint + 1) / (expected + 1), 0.05), 50))

    new, old = y.shape[1], z.shape[1]
    rates = [y[known[:, i], i].mean() if known[:, i].any() else 0 for i in range(new)]
    new_new, old_new = np.zeros((new, new)), np.zeros((old, new))
    for j in range(new):
        for i in range(new):
            seen = known[:, i] & known[:, j]
            joint, given = y[seen, i] @ y[seen, j], y[seen, j].sum()
            new_new[i, j] = log_lift(joint, given * rates[i]) if i != j else 0
        for i in range(old):
            soft = scale[i] * z[known[:, j], i]
            old_new[i, j] = log_lift(soft @ y[known[:, j], j], soft.sum() * rates[j])
    return new_new, old_new


@MATRICES
@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("share_known", [1.0, 0.6])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_log_lifts_equal_counting_for_each_pair_of_classes(make, across, share_known, dtype, tolerance):
    acm, relations = make(), LabelRelations(0.3, across=across)
    relations.frozen = relations.frozen.to(dtype)
    expected = np.zeros((0, 0))
    for y, z, known in random_tasks((3, 2, 4), 60, share_known=share_known):
        known[:, 1] &= share_known == 1  # of this class no label is known: its log-lifts are 0
        relations.freeze(acm)
        acm.begin_task(y.shape[1])
        count(acm, y, z, known)
        scale = acm.soft_label_scale().tolist() if isinstance(acm, CalibratedACM) else [1.0] * z.shape[1]
        new_new, old_new = slow_task_lifts(y, z, known, scale)
        if not across:
            old_new[:] = 0
        expected = np.block([[expected, old_new], [old_new.T, new_new]])
        got = relations.log_lift(acm)
        assert got.dtype == dtype
        np.testing.assert_allclose(got.numpy(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("share_known", [1.0, 0.6])
@MATRICES
def test_independent_classes_have_a_log_lift_near_zero_after_any_number_of_tasks(make, share_known):
    rng = np.random.default_rng(0)
    acm, relations = make(), LabelRelations(0.3)
    before = torch.zeros(0, 0)
    for t in range(10):
        relations.freeze(acm)
        acm.begin_task(2)
        y = rng.random((200_000, 2)) < (0.3, 0.5)
        z = 0.8 * rng.random((200_000, 2 * t))
        count(acm, y, z, rng.random(y.shape) < share_known, batch=20_000)
        lift = relations.log_lift(acm)
        assert torch.equal(lift[: 2 * t, : 2 * t], before)  # those of earlier tasks do not change
        if share_known == 1:
            torch.testing.assert_close(lift, lift.T, atol=1e-6, rtol=0)
        if t in (0, 4, 9):
            assert lift.abs().max() < 0.05
        before = lift
    assert before.shape == (20, 20)


def test_log_lifts_are_limited():
    acm, relations = ACM(), LabelRelations(1.0)
    acm.begin_task(4)
    labels = torch.zeros(100_000, 4)
    labels[:50_000, 0] = labels[50_000:, 1] = 1  # never together
    labels[:200, 2] = labels[:200, 3] = 1  # rare, and always together
    acm.update(labels)
    lift = relations.log_lift(acm).exp()
    assert lift[0, 1].item() == pytest.approx(0.05)
    assert lift[2, 3].item() == pytest.approx(50)


def test_refined_logits_equal_loops():
    torch.manual_seed(0)
    relations, logits, lift = LabelRelations(0.4), torch.randn(3, 4), torch.randn(5, 5)
    got = relations.refine_logits(logits, lift)
    for x in range(3):
        refined = logits[x].tolist()
        for _ in range(2):  # the second step uses the probabilities after the first
            sums = [sum(lift[i, j].item() / (1 + math.exp(-refined[j])) for j in range(4)) for i in range(4)]
            refined = [logits[x, i].item() + 0.4 * sums[i] for i in range(4)]
        assert got[x].tolist() == pytest.approx(refined, abs=1e-5)


def test_log_lifts_of_zero_change_no_logit():
    logits = torch.randn(3, 4)
    assert torch.equal(LabelRelations(0.4).refine_logits(logits, torch.zeros(4, 4)), logits)


@pytest.mark.gpu
def test_no_host_sync_on_the_gpu():
    acm, relations = ACM("cuda"), LabelRelations(0.3, device="cuda")
    acm.begin_task(3)
    acm.update(torch.ones(4, 3, device="cuda"))
    relations.freeze(acm)
    acm.begin_task(2)
    acm.update(torch.ones(4, 2, device="cuda"), torch.rand(4, 3, device="cuda"))
    logits = torch.randn(4, 5, device="cuda")
    with no_waiting():
        refined = relations.refine_logits(logits, relations.log_lift(acm))
    assert refined.shape == (4, 5)
