"""One task for every image, with task sizes as equal as possible."""

import itertools

import numpy as np

from lifelabel.streams.balance import assign_tasks
from lifelabel.streams.labels import Labels


def test_sizes_are_as_equal_as_they_can_be():
    rng = np.random.default_rng(1)
    best_found = 0
    for _ in range(200):
        tasks, images = int(rng.integers(2, 6)), int(rng.integers(1, 8))
        load = rng.integers(0, 5, tasks)
        sizes = (rng.integers(1, min(tasks, 3) + 1) for _ in range(images))
        rows = [sorted(rng.choice(tasks, size, replace=False).tolist()) for size in sizes]
        task = assign_tasks(Labels.from_lists(rows, tasks), np.zeros(images, np.uint64), load)
        mine = sorted((load + np.bincount(task, minlength=tasks)).tolist())
        ways = (sorted((load + np.bincount(way, minlength=tasks)).tolist()) for way in itertools.product(*rows))
        best = min(ways, key=lambda way: way[::-1])
        best_found += mine == best
        assert mine[-1] <= best[-1] + 1 and mine[0] >= best[0] - 1
    assert best_found >= 195


def test_a_chain_of_tasks_is_balanced():
    """Images fit only two neighbouring tasks: the last task can only shrink through all the others."""
    pairs = [[k, k + 1] for k in range(9) for _ in range(100)]
    load = np.array([0] * 9 + [500])
    task = assign_tasks(Labels.from_lists(pairs, 10), np.zeros(900, np.uint64), load)
    filled = load + np.bincount(task, minlength=10)
    assert filled[9] == 500
    assert np.abs(np.diff(filled[:9])).max() <= 1  # no single move makes the sizes more equal


def test_every_image_gets_one_of_its_choices_also_without_images():
    rng = np.random.default_rng(2)
    dense = rng.random((500, 6)) < 0.4
    dense[np.arange(500), rng.integers(0, 6, 500)] = True
    task = assign_tasks(Labels.from_dense(dense), rng.integers(0, 1 << 60, 500, np.uint64), np.zeros(6, int))
    assert dense[np.arange(500), task].all()
    none = assign_tasks(Labels.from_lists([], 6), np.zeros(0, np.uint64), np.arange(6))
    assert none.shape == (0,)


def test_draws_decide_among_images_with_the_same_choices():
    """The images with the smallest draws go to the first task. The order of the images has no effect."""
    choices = Labels.from_lists([[0, 1]] * 6 + [[1]] * 2, 2)
    draws = np.array([50, 10, 40, 20, 60, 30, 0, 0], np.uint64)
    task = assign_tasks(choices, draws, np.zeros(2, int))
    assert task.tolist() == [1, 0, 0, 0, 1, 0, 1, 1]
    order = np.random.default_rng(0).permutation(8)
    assert assign_tasks(choices.take(order), draws[order], np.zeros(2, int)).tolist() == task[order].tolist()


def test_images_that_a_task_has_already_count():
    choices, draws = Labels.from_lists([[0, 1, 2]] * 7, 3), np.arange(7, dtype=np.uint64)
    added_to = {(0, 0, 0): [3, 2, 2], (9, 0, 3): [0, 5, 2], (4, 4, 0): [1, 1, 5], (99, 98, 0): [0, 0, 7]}
    for load, added in added_to.items():
        assert np.bincount(assign_tasks(choices, draws, np.array(load)), minlength=3).tolist() == added
