"""Passes of the network that are divided among processes: the same numbers as in one process."""

import functools

import pytest
import torch
from support import group_tasks

from lifelabel.parallel.group import Group


@pytest.fixture
def in_processes(tmp_path):
    """The results of a function of `group_tasks` in several processes, by rank."""
    return functools.partial(group_tasks.in_processes, tmp_path)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("rows", [7, 2])
def test_features_gradients_and_statistics_are_those_of_one_process(in_processes, size, rows):
    """Also if the rows cannot be divided evenly, and if a process has none."""
    (alone,) = in_processes(1, "step", rows)
    for found in in_processes(size, "step", rows):
        for expected, value in zip(alone, found, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-13)


def test_batch_norm_of_own_rows_would_differ(in_processes):
    """The check above can fail: without the statistics of the whole batch the features differ."""
    (alone,) = in_processes(1, "step", 6)
    assert (in_processes(2, "step", 6, 0)[0][0] - alone[0]).abs().max() > 1e-3


def test_random_numbers_after_dropout_are_the_same_in_all_processes(in_processes):
    first, *others = in_processes(3, "draw_after_dropout")
    assert others == [first, first]
    rows = first[0][1]
    assert rows[0] != rows[2] and rows[2] != rows[4]  # the processes have two rows each, and other numbers


def test_the_first_process_shares_results_and_failures(in_processes):
    found = in_processes(3, "exchange")
    assert [each[0] for each in found] == [[0, 1, 2]] * 3
    assert [each[1] for each in found] == [[0, 1, 2], None, None]
    assert [each[2] for each in found] == [["of the first", 0]] * 3
    assert [each[3] for each in found] == ["ZeroDivisionError", "OtherProcess", "OtherProcess"]


@pytest.mark.parametrize("count", [0, 1, 5, 7, 24])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_row_belongs_to_one_process(count, size):
    parts = [list(range(count)[Group(rank, size).rows(count)]) for rank in range(size)]
    assert [row for part in parts for row in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize(("task", "size"), [("step_with_nccl", 1), ("step_on_one_gpu", 2)])
def test_features_gradients_and_statistics_on_a_gpu(in_processes, task, size):
    (alone,) = in_processes(1, "step", 7)
    for found in in_processes(size, task, 7):
        for expected, value in zip(alone, found, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-11)
