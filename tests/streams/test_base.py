import dataclasses

import numpy as np

from lifelabel.streams.base import Split, Stream, split_classes

CLASSES = ("a", "b", "c", "d", "e")


def make(seed=0):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (12, 4, 4, 3), dtype=np.uint8)
    split = Split(lambda rows: pixels[rows], rng.random((12, 5)) < 0.5, rng.integers(0, 2, 12))
    return Stream("made up", split_classes(CLASSES, 2), split, split)


def test_classes_are_cut_into_runs():
    assert [t.classes for t in split_classes(CLASSES, 2)] == [("a", "b", "c"), ("d", "e")]
    assert [(t.first, t.last) for t in split_classes(CLASSES, 3)] == [(0, 2), (2, 4), (4, 5)]
    assert make().classes == CLASSES


def test_a_view_holds_the_images_and_labels_of_its_task_alone():
    stream = make()
    view = stream.train_view(1)
    images, labels = view.batch(np.arange(len(view)))
    rows = np.flatnonzero(stream.train.task == 1)
    assert np.array_equal(images, stream.train.images(rows))
    assert np.array_equal(labels, stream.train.labels[rows, 3:])
    assert view.labels.base is None  # a copy: the complete labels cannot be reached through it


def test_the_joint_view_holds_everything():
    stream = make()
    view = stream.joint_view()
    assert view.task.classes == CLASSES
    assert np.array_equal(view.batch(np.arange(12))[1], stream.train.labels)


def test_the_fingerprint_tells_streams_apart():
    assert make().fingerprint == make().fingerprint
    others = [make(seed=1), dataclasses.replace(make(), tasks=split_classes(CLASSES, 3))]
    flipped = make()
    flipped.test.labels[0, 0] ^= True
    assert all(other.fingerprint != make().fingerprint for other in [*others, flipped])
