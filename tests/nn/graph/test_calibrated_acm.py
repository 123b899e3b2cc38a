"""The calibrated matrix against values computed by hand and against the published matrix."""

import numpy as np
import pytest
import torch

from lifelabel.nn.graph import ACM, CalibratedACM


def test_the_mean_of_soft_labels_is_limited_by_the_prevalence():
    acm = CalibratedACM(prevalence=2.0, over_stream=True)
    acm.begin_task(2)
    acm.update(torch.tensor([[1, 0], [1, 1], [0, 1], [1, 0]]))  # hard labels: 3 and 2 images
    acm.begin_task(1)
    y = torch.tensor([[1.0], [0.0], [1.0], [1.0]])
    z = torch.tensor([[0.9, 0.1], [0.8, 0.0], [1.0, 0.1], [0.9, 0.0]])
    acm.update(y, z)
    # 8 images so far. Class 0: limit 2 * 3/8 = 0.75, mean 0.9. Class 1: limit 2 * 2/8 = 0.5, mean 0.05.
    scale = 0.75 / 0.9
    np.testing.assert_allclose(acm.soft_label_scale().numpy(), [scale, 1], atol=1e-7)
    r0, r1 = scale * (0.9 + 1.0 + 0.9) / 3, 0.2 / 3
    q0, q1 = scale * 2.8 / (3 + scale * 3.6), 0.2 / (2 + 0.2)
    expected = [[1, 1 / 2, r0], [1 / 3, 1, r1], [q0, q1, 1]]
    np.testing.assert_allclose(acm.matrix().numpy(), expected, atol=1e-7)
    np.testing.assert_allclose(acm.expected_counts().numpy(), [3 + scale * 3.6, 2.2, 3], atol=1e-6)


def test_without_over_stream_new_old_divides_by_the_images_of_the_task():
    acm = CalibratedACM(prevalence=1.0)
    acm.begin_task(1)
    acm.update(torch.tensor([[1.0], [0.0], [0.0], [0.0]]))
    acm.begin_task(1)
    acm.update(torch.tensor([[1.0], [0.0], [1.0], [1.0]]), torch.tensor([[0.5], [0.5], [1.0], [0.0]]))
    # the limit is 1/8 and the mean 1/2, so the scale is 1/4; it cancels in the New-Old block
    assert acm.soft_label_scale().tolist() == [0.25]
    np.testing.assert_allclose(acm.matrix().numpy(), [[1, 0.25 * 1.5 / 3], [1.5 / 2, 1]], atol=1e-12)


def random_batches(seed=0, sizes=(3, 2, 4), known=False):
    rng = np.random.default_rng(seed)
    old = 0
    for new in sizes:
        batches = []
        for _ in range(5):
            y, z = rng.random((8, new)) < 0.4, rng.random((8, old))
            mask = torch.tensor(rng.random((8, new)) < 0.7) if known else None
            batches.append((torch.tensor(y), torch.tensor(z), mask))
        yield new, batches
        old += new


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("halve", [False, True])
def test_without_prevalence_and_over_stream_it_is_the_published_matrix(halve, known):
    published, calibrated = ACM(halve=halve), CalibratedACM(halve=halve)
    for new, batches in random_batches(known=known):
        for acm in (published, calibrated):
            acm.begin_task(new)
            for batch in batches:
                acm.update(*batch)
        assert torch.equal(published.matrix(), calibrated.matrix())


def test_three_tasks_with_unknown_labels_equal_the_slow_computation():
    """Scaled soft labels, and expected images of all tasks in the New-Old block, with loops over images."""
    prevalence = 0.5
    acm = CalibratedACM(prevalence=prevalence, over_stream=True)
    hard, expected_counts, images = [], [], 0
    for new, batches in random_batches(seed=1, known=True):
        acm.begin_task(new)
        for batch in batches:
            acm.update(*batch)
        y, z, known = (torch.cat(parts).double().numpy() for parts in zip(*batches, strict=True))
        y, old = y * known, z.shape[1]
        images += len(y)
        matrix = acm.matrix().numpy()
        for i in range(old):
            scale = min(1, prevalence * hard[i] / images / (sum(z[:, i]) / len(z)))
            assert acm.soft_label_scale()[i].item() == pytest.approx(scale, abs=1e-12)
            for j in range(new):
                joint = sum(scale * z[x, i] * y[x, j] for x in range(len(y)))
                in_task = sum(scale * z[x, i] for x in range(len(y)) if known[x, j])
                assert matrix[i, old + j] == pytest.approx(joint / sum(y[:, j]), abs=1e-12)
                assert matrix[old + j, i] == pytest.approx(joint / (expected_counts[i] + in_task), abs=1e-12)
            expected_counts[i] += scale * sum(z[:, i])
        hard += list(y.sum(0))
        expected_counts += list(y.sum(0))
        np.testing.assert_allclose(acm.expected_counts().numpy(), expected_counts, atol=1e-12, rtol=0)
