"""The constants of the paper: which classes its tasks have, and its numbers of images."""

import pytest

from lifelabel.streams.class_names import COCO_CLASSES, NUS_WIDE_CLASSES
from lifelabel.streams.paper import SPECIAL_AND_MIXED, TASKS


@pytest.mark.parametrize(
    ("dataset", "names", "tasks", "size", "special", "mixed"),
    [("coco", COCO_CLASSES, 10, 4, 20_602, 44_480), ("nus-wide", NUS_WIDE_CLASSES, 7, 3, 59_516, 85_342)],
)
def test_every_task_has_its_own_classes_of_the_data_set_and_two_counts(dataset, names, tasks, size, special, mixed):
    assert [len(task) for task in TASKS[dataset]] == [size] * tasks
    classes = [name for task in TASKS[dataset] for name in task]
    assert len(set(classes)) == len(classes) and set(classes) <= set(names)
    if dataset == "coco":
        assert classes == sorted(classes, key=names.index)
    assert len(SPECIAL_AND_MIXED[dataset]) == tasks
    assert [sum(counts) for counts in zip(*SPECIAL_AND_MIXED[dataset], strict=True)] == [special, mixed]
