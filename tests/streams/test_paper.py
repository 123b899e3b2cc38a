"""The constants of the paper: which classes its tasks have, and its numbers of images."""

import pytest

from lifelabel.streams.class_names import COCO_CLASSES, NUS_WIDE_CLASSES
from lifelabel.streams.paper import SPECIAL_AND_MIXED, TASKS


@pytest.mark.parametrize(
    ("dataset", "names", "tasks", "size"), [("coco", COCO_CLASSES, 10, 4), ("nus-wide", NUS_WIDE_CLASSES, 7, 3)]
)
def test_every_task_has_its_own_classes_of_the_data_set(dataset, names, tasks, size):
    assert [len(task) for task in TASKS[dataset]] == [size] * tasks
    classes = [name for task in TASKS[dataset] for name in task]
    assert len(set(classes)) == len(classes) and set(classes) <= set(names)


def test_split_coco_has_its_classes_in_the_order_of_coco():
    assert [name for task in TASKS["coco"] for name in task] == sorted(
        (name for task in TASKS["coco"] for name in task), key=COCO_CLASSES.index
    )


@pytest.mark.parametrize(("dataset", "special", "mixed"), [("coco", 20_602, 44_480), ("nus-wide", 59_516, 85_342)])
def test_the_table_has_two_counts_for_each_task(dataset, special, mixed):
    table = SPECIAL_AND_MIXED[dataset]
    assert len(table) == len(TASKS[dataset])
    assert [sum(counts) for counts in zip(*table, strict=True)] == [special, mixed]
