"""The calibrated matrix against values computed by hand and against the published matrix."""

import numpy as np
import pytest
import torch

from lifelabel.nn.graph import ACM, CalibratedACM


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


@pytest.mark.parametrize(("prevalence", "over_stream"), [(0.5, True), (5.0, True), (5.0, False)])
def test_three_tasks_with_unknown_labels_equal_the_slow_computation(prevalence, over_stream):
    """Scaled soft labels, and expected images of one or of all tasks in the New-Old block, with loops over images."""
    acm = CalibratedACM(prevalence=prevalence, over_stream=over_stream)
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
                before = expected_counts[i] if over_stream else 0
                assert matrix[old + j, i] == pytest.approx(joint / (before + in_task), abs=1e-12)
            expected_counts[i] += scale * sum(z[:, i])
        hard += list(y.sum(0))
        expected_counts += list(y.sum(0))
        np.testing.assert_allclose(acm.expected_counts().numpy(), expected_counts, atol=1e-12, rtol=0)
