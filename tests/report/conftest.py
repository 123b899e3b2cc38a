"""Fixtures of several tests of reports."""

import pytest
from report.small_streams import CLASSES, split

from lifelabel.streams.stream import Stream, classes_to_tasks


@pytest.fixture
def stream():
    """Two tasks of two classes: five training images of which three hide a label, four test images, one file twice."""
    train = split([[0], [0, 1, 2], [0, 2, 3], [2], [1, 3], [0]], [[0, 1, 2], [3, 4]], absent=[4])  # the last is unused
    test = split([[0, 2], [1], [3], [2, 3]], [[0, 1], [2, 3]], names=["a.jpg", "b.jpg", "c.jpg", "b.jpg"])
    stream = Stream("pets", classes_to_tasks(CLASSES, [2, 2]), train, test, rules={"protocol": "disjoint", "seed": 3})
    stream.problems.add("rows without a label", "line 7")
    return stream
