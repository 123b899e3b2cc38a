"""The search for the threshold against a loop over stored probabilities, and the expected number of labels."""

import numpy as np
import pytest
import torch

from lifelabel.nn.pseudo_labels import PseudoLabels


def slow_search(probabilities, expected):
    """The literal search over all probabilities of the task (images x old classes)."""
    steps, best, first_error = 160, None, None
    for _ in range(100):
        threshold = np.float32(steps) / np.float32(200)
        error = (probabilities >= threshold).sum() / len(probabilities) - expected
        if best is None or abs(error) < best[0]:
            best = abs(error), threshold
        first_error = error if first_error is None else first_error
        if abs(error) <= 0.1 or np.sign(error) != np.sign(first_error):
            break
        steps = min(steps + int(np.sign(error)), 200)
    return best[1]


def labels_of(per_image, old, new, density=1.0):
    """Pseudo labels that expect `per_image` old labels of each image."""
    found = PseudoLabels(density)
    found.labels += round(per_image * 1000)
    found.images += 1000
    found.begin_task(old, new)
    return found


@pytest.mark.parametrize("expected", [0.0, 0.13, 0.71, 1.37, 2.93, 7.1])
@pytest.mark.parametrize("power", [0.3, 1.0, 6.0])
def test_each_step_finds_the_threshold_of_the_literal_search(expected, power):
    rng = np.random.default_rng(3)
    found, seen = labels_of(2 * expected, 4, 4), np.empty((0, 8), np.float32)
    for count in (1, 5, 2, 17):
        given = rng.random((count, 8), np.float32) ** np.float32(power)
        given[0, :3] = 0.75, 0.8, 1.0  # values of the grid, and its end
        seen = np.concatenate([seen, given])
        assert found.search(torch.from_numpy(given)).item() == slow_search(seen, expected)


@pytest.mark.parametrize(
    ("probabilities", "expected", "threshold"),
    [
        ([[0.9, 0.9], [0.85, 0.1]], 1.45, 0.8),  # 1.5 labels at once
        ([[0.9, 0.82], [0.85, 0.1]], 1.0, 0.825),  # one step up from 0.82: two labels remain
        ([[0.9, 0.7], [0.6, 0.1]], 1.0, 0.7),  # down to the second label
        ([[0.7, 0.7], [0.7, 0.7]], 0.9, 0.8),  # at 0.7 there are two labels per image: none is nearer to 0.9
        ([[0.7, 0.7], [0.7, 0.7]], 1.1, 0.7),  # and two are nearer to 1.1
        ([[0.2, 0.2], [0.2, 0.2]], 1.0, 0.8),  # never reached in 100 tries, all of them equal
        ([[1.0, 1.0], [1.0, 1.0]], 1.0, 0.8),  # a probability of 1 is above every threshold
    ],
)
def test_the_search_by_hand(probabilities, expected, threshold):
    found = labels_of(expected * 2, 3, 3).search(torch.tensor(probabilities))
    assert found.item() == pytest.approx(threshold)


def test_the_expected_number_is_that_of_earlier_tasks_times_the_share_of_old_classes():
    found = PseudoLabels(density=0.5)
    found.begin_task(0, 2)
    assert found.expected == 0
    found.count(
        torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([[True, True], [True, True], [True, False]])
    )
    found.begin_task(2, 3)
    assert found.expected.item() == pytest.approx(0.5 * 2 / 5 * 3 / 3)
    found.search(torch.rand(4, 2))
    found.count(torch.ones(2, 5), torch.ones(2, 5, dtype=torch.bool))
    assert found.expected.item() == pytest.approx(0.2)  # the labels of the task itself do not change it
    found.begin_task(5, 5)
    assert found.expected.item() == pytest.approx(0.5 * 5 / 10 * 13 / 5)
    assert not found.histogram.any() and found.task_images == 0


def test_a_state_is_restored():
    found = labels_of(1.7, 3, 2)
    found.search(torch.rand(6, 3))
    restored = PseudoLabels()
    restored.load_state_dict(found.state_dict())
    given = torch.rand(5, 3)
    assert torch.equal(restored.search(given), found.search(given)) and restored.bytes == found.bytes > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_same_on_the_gpu():
    on_cpu, on_gpu = labels_of(2.3, 4, 4), PseudoLabels(device="cuda")
    on_gpu.load_state_dict(on_cpu.state_dict())
    for _ in range(5):
        given = torch.rand(9, 6)
        assert on_gpu.search(given.cuda()).item() == on_cpu.search(given).item()
