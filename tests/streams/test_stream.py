import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from lifelabel.images.source import Names, Problems
from lifelabel.streams.labels import Labels, Unknown
from lifelabel.streams.stream import Split, Stream, classes_to_tasks, equal_tasks, true_matrix

CLASSES = ("a", "b", "c", "d", "e")


def make(present=None):
    rng = np.random.default_rng(0)
    labels = rng.random((12, 5)) < 0.5
    images = SimpleNamespace(present=np.ones(12, bool) if present is None else present)
    names = Names(f"{i}.jpg" for i in range(12))
    rows = (np.array([0, 2, 4, 5, 9]), np.array([1, 3, 6, 7, 8, 11]))  # image 10 is in no task
    split = Split(images, names, Labels.from_dense(labels), rows)
    return Stream("made up", equal_tasks(CLASSES, 2), split, split), labels


def incomplete(stream):
    return dataclasses.replace(stream, train=dataclasses.replace(stream.train, complete=False))


def test_classes_are_divided_into_tasks():
    assert [t.classes for t in equal_tasks(CLASSES, 2)] == [("a", "b", "c"), ("d", "e")]
    assert [(t.offset, t.end) for t in equal_tasks(CLASSES, 3)] == [(0, 2), (2, 4), (4, 5)]
    assert [t.classes for t in classes_to_tasks(CLASSES, [1, 4])] == [("a",), ("b", "c", "d", "e")]
    assert make()[0].classes == CLASSES


def test_names_are_a_sequence_of_strings():
    texts = ["a.jpg", "", "naïve café.png", "b.jpg"]
    names = Names(texts)
    assert list(names) == texts and names[-1] == "b.jpg" and names[1:3] == texts[1:3]
    assert list(names.take(np.array([2, 0]))) == [texts[2], texts[0]]
    with pytest.raises(IndexError):
        names[4]


def test_conditional_frequencies():
    dense = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 0]], bool)
    matrix = true_matrix(Labels.from_dense(dense))
    assert matrix[0, 1] == 1 and matrix[1, 0] == pytest.approx(2 / 3) and not matrix[:, 2].any()


def test_a_view_has_only_the_images_and_labels_of_its_task():
    stream, labels = make()
    view = stream.train_view(1)
    assert view.rows.tolist() == [1, 3, 6, 7, 8, 11]
    assert np.array_equal(view.labels.dense(), labels[view.rows, 3:])
    assert view.known(np.array([0])) is None
    assert view.labels.classes == 2 and view.labels.column.base is None  # the complete labels cannot be reached


def test_views_skip_images_without_a_file():
    present = np.ones(12, bool)
    present[[3, 9]] = False
    stream, _ = make(present)
    assert stream.train_view(1).rows.tolist() == [1, 6, 7, 8, 11]
    assert stream.joint_view().rows.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 11]


def test_the_joint_view_has_all_known_labels():
    stream, labels = make()
    view = stream.joint_view()
    assert view.task.classes == CLASSES and view.known(np.array([0])) is None
    assert view.rows.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11]
    assert np.array_equal(view.labels.dense(), labels[view.rows])

    partial = incomplete(stream).joint_view()
    task_classes = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 1, 1]], bool)
    assert np.array_equal(partial.known(np.arange(11)), task_classes[[0, 1, 0, 1, 0, 0, 1, 1, 1, 0, 1]])
    assert np.array_equal(partial.known(np.array([3, 0])), task_classes[[1, 0]])


def test_with_known_labels_a_view_has_the_labels_of_all_classes_so_far():
    stream, labels = make()
    known = dataclasses.replace(stream, labels="known")
    first, second = known.train_view(0), known.train_view(1)
    assert first.classes == CLASSES[:3] and second.classes == CLASSES
    assert np.array_equal(first.labels.dense(), labels[first.rows, :3])  # later classes are hidden
    assert np.array_equal(second.labels.dense(), labels[second.rows])
    partial = incomplete(known).joint_view()
    numbers = [3 if row in known.train.rows[0] else 5 for row in partial.rows]
    assert partial.known(np.arange(11)).sum(1).tolist() == numbers
    assert known.fingerprint != stream.fingerprint


def test_labels_that_are_unknown_are_masked():
    stream, labels = make()
    unknown = np.zeros_like(labels)
    unknown[[1, 3], [0, 4]] = True
    split = dataclasses.replace(stream.train, unknown=Unknown.of_entries(Labels.from_dense(unknown)))
    known = dataclasses.replace(stream, train=split, labels="known")
    for source, columns in ((dataclasses.replace(stream, train=split), slice(3, 5)), (known, slice(0, 5))):
        view = source.train_view(1)
        assert np.array_equal(view.known(np.arange(6)), ~unknown[view.rows, columns])
        assert source.train_view(0).unknown is None  # nothing is unknown there
    assert known.unknown_lines() == {"train": ["0 1.jpg", "4 3.jpg"]}
    assert known.fingerprint != dataclasses.replace(stream, labels="known").fingerprint


def test_if_no_label_of_an_old_class_is_known_a_view_has_the_classes_of_its_task_only():
    stream, labels = make()
    empty = Labels.from_dense(np.zeros_like(labels))
    in_every_image = Unknown(empty, np.array([True, True, True, False, False]))
    entry_by_entry = Unknown.of_entries(Labels.from_dense(np.tile(in_every_image.classes, (12, 1))))
    for unknown in (in_every_image, entry_by_entry):
        split = dataclasses.replace(stream.train, unknown=unknown)
        view = dataclasses.replace(stream, train=split, labels="known").train_view(1)
        assert view.classes == ("d", "e") and view.unknown is None
        assert view.labels == stream.train_view(1).labels


def test_the_fingerprint_depends_on_tasks_images_and_visible_labels():
    stream, labels = make()
    assert stream.fingerprint == make()[0].fingerprint

    def with_labels(split, row, column):
        changed = labels.copy()
        changed[row, column] ^= True
        other = dataclasses.replace(getattr(stream, split), labels=Labels.from_dense(changed))
        return dataclasses.replace(stream, **{split: other})

    assert with_labels("train", 1, 0).fingerprint == stream.fingerprint  # hidden: image 1 belongs to the other task
    others = [dataclasses.replace(stream, tasks=equal_tasks(CLASSES, 3)[:2])]
    others += [with_labels("train", 1, 3), with_labels("test", 1, 0)]
    swapped = dataclasses.replace(stream.train, rows=stream.train.rows[::-1])
    renamed = dataclasses.replace(stream.train, names=Names(f"{i}.png" for i in range(12)))
    others += [dataclasses.replace(stream, train=split) for split in (swapped, renamed)]
    assert len({other.fingerprint for other in [*others, stream]}) == len(others) + 1


def test_problems_have_a_count_and_up_to_five_examples_without_control_characters():
    problems = Problems()
    assert not problems and problems.brief() == ""
    for line in range(9):
        problems.add("bad rows", f"line {line}")
    problems.add("empty classes", "dog", 3)
    problems.add("odd rows", "line 3: \x1b[31mred\n")
    problems.add("odd rows", "line 4")
    assert problems.lines() == [
        "9 bad rows: line 0, line 1, line 2, line 3, line 4, …",
        "3 empty classes: dog, …",
        "2 odd rows: line 3: \ufffd[31mred\ufffd, line 4",
    ]
    assert problems.brief() == " (9 bad rows; 3 empty classes; 2 odd rows)"
