"""The visible labels of a batch, and which of them are used."""

import pytest
import torch
from support.methods import TASKS, batch, make, with_old

from lifelabel.errors import HiddenLabel
from lifelabel.methods import Batch

OLD = len(TASKS[0])


def test_a_batch_has_only_the_labels_of_its_task():
    labels = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    given = Batch(torch.zeros(2, 3, 4, 4), labels, labels >= 0, ("sky", "sea"))
    assert given.label("sky").tolist() == [0, 1]
    with pytest.raises(HiddenLabel) as hidden:
        given.label("boat")
    assert str(hidden.value) == "the label 'boat' is hidden: the visible classes are sky, sea"


def test_a_known_label_takes_the_place_of_the_soft_label():
    """Where only one of the old classes is known, the other one is learned as without labels."""
    original, new = batch(make("fine-tuning"), 1, 0), len(TASKS[1])
    given, soft = with_old(original, (True, False), (True, False)), torch.full((4, OLD), 0.25)
    assert given.with_known(soft, new).tolist() == [[1.0, 0.25]] * 4
    labels, known = given.of_task(new)
    assert torch.equal(labels, original.labels) and torch.equal(known, original.known)
    assert torch.equal(original.with_known(soft, new), soft)
