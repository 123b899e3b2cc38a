"""Sums of features by task: packed matrices, and what each image adds."""

import pytest
import torch

from lifelabel.nn.task_sums import TaskSums, pack, unpack


def symmetric(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return matrix + matrix.T


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 50, 51])
def test_a_packed_matrix_is_its_triangle(size):
    matrix = symmetric(size)
    packed = pack(matrix)
    even = size + size % 2
    assert packed.numel() == even * (even + 1) // 2
    assert torch.equal(unpack(packed, size), matrix)
    assert set(matrix.flatten().tolist()) <= set(packed.flatten().tolist())
    assert torch.equal(pack(unpack(packed, size)), packed)


def test_packing_keeps_the_type_and_reads_one_triangle():
    matrix = symmetric(6).float()
    assert pack(matrix).dtype == unpack(pack(matrix), 6).dtype == torch.float32
    # a sum of products is symmetric up to rounding: what is unpacked is symmetric to the bit
    matrix[1, 4] += 1e-6
    unpacked = unpack(pack(matrix), 6)
    assert torch.equal(unpacked, unpacked.T)


def features(count, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([torch.randn(count, dim - 1, generator=generator), torch.ones(count, 1)], 1)


def add(sums, task, count=6, classes=2, share_known=1.0):
    generator = torch.Generator().manual_seed(10 + task)
    known = torch.rand(count, classes, generator=generator) < share_known
    labels = (torch.rand(count, classes, generator=generator) < 0.5).float()
    phi = features(count, sums.dim, task)
    sums.add(phi, labels, known)
    return phi.double(), labels.double(), known


@pytest.mark.parametrize("dim", [4, 5])
@pytest.mark.parametrize("storage", [torch.float64, torch.float32])
def test_sums_of_each_task(dim, storage):
    sums = TaskSums(dim, "cpu", storage)
    given = []
    for task in range(3):
        sums.begin_task(2)
        given.append(add(sums, task, share_known=0.7))
    tolerance = 1e-12 if storage == torch.float64 else 1e-6
    torch.testing.assert_close(sums.total, sum(phi.T @ phi for phi, _, _ in given), rtol=1e-12, atol=1e-12)
    assert sums.total[-1, -1] == 18  # the constant counts images
    for task, (phi, labels, known) in enumerate(given):
        gram, cross = sums.of_task(task)
        complete = phi[known.all(1)]
        assert 0 < len(complete) < 6
        torch.testing.assert_close(gram, complete.T @ complete, rtol=tolerance, atol=tolerance)
        weights = torch.where(known.all(1), 1.0, 0.25).double()
        torch.testing.assert_close(cross, (phi * weights[:, None]).T @ (labels * known), rtol=1e-12, atol=1e-12)
        assert gram.dtype == torch.float64
    assert len(sums.stored) == 2 and all(part.dtype == storage for part in sums.stored)


def test_images_of_a_later_task_may_have_labels_of_earlier_ones():
    sums = TaskSums(5, "cpu")
    sums.begin_task(1)
    first = add(sums, 0, classes=1)
    sums.begin_task(2)
    second = add(sums, 1, classes=3)  # of the first task too
    expected = sum(phi.T @ phi for phi in (first[0], second[0]))
    cross = first[0].T @ first[1] + second[0].T @ second[1][:, :1]

    def check(found):
        torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found[1], cross, rtol=1e-12, atol=1e-12)

    check(sums.of_task(0))  # before it is stored
    restored = TaskSums(5, "cpu")
    restored.load_state_dict(sums.state_dict())
    check(restored.of_task(0))
    for each in (sums, restored):
        each.begin_task(2)
        check(each.of_task(0))
        third = add(each, 2, classes=4)  # of the second task, not of the first
        check(each.of_task(0))
        gram = sum(phi.T @ phi for phi in (second[0], third[0]))
        torch.testing.assert_close(each.of_task(1)[0], gram, rtol=1e-12, atol=1e-12)


def test_a_part_of_the_classes_of_a_task_is_not_counted():
    """Labels of the last three of four classes: the first task of two classes has one column only."""
    sums, other = TaskSums(5, "cpu"), TaskSums(5, "cpu")
    for each, classes in ((sums, 3), (other, 2)):
        each.begin_task(2)
        add(each, 0)
        each.begin_task(2)
        phi = features(6, 5, 1)
        labels = torch.ones(6, 3)[:, -classes:]
        each.add(phi, labels, labels > 0)
    for task in range(2):
        for a, b in zip(sums.of_task(task), other.of_task(task), strict=True):
            assert torch.equal(a, b)


def test_a_change_of_basis_is_that_of_the_features():
    sums, expected = TaskSums(5, "cpu"), TaskSums(3, "cpu")
    matrix = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for each in (sums, expected):
        each.begin_task(2)
    phi, labels, known = add(sums, 0, share_known=0.7)
    expected.add(phi @ matrix, labels, known)
    sums.change_basis(matrix)
    assert sums.dim == 3
    for name in ("total", "current", "cross"):
        torch.testing.assert_close(getattr(sums, name), getattr(expected, name), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dim", [4, 5])
def test_bytes_are_those_of_all_tasks(dim):
    sums = TaskSums(dim, "cpu", torch.float32)
    for task in range(3):
        sums.begin_task(2)
        add(sums, task)
    counted = sums.bytes
    sums.end_task()
    assert counted == sums.bytes == sums.total.nbytes + sums.cross.nbytes + sum(part.nbytes for part in sums.stored)


def test_a_restored_state_shares_no_memory():
    sums, restored = TaskSums(5, "cpu"), TaskSums(5, "cpu")
    sums.begin_task(2)
    add(sums, 0)
    restored.load_state_dict(sums.state_dict())
    before = restored.total.clone()
    add(sums, 1)
    sums.begin_task(1)
    assert torch.equal(restored.total, before) and restored.sizes == [2] and not restored.stored
