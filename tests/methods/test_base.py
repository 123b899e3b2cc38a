"""What all methods share."""

import copy

import pytest
import torch
from support.methods import same
from support.replay import TASKS, batch, make

from lifelabel.errors import HiddenLabel
from lifelabel.methods import _BUILT_IN, METHODS, Batch


def test_all_built_in_methods_are_registered():
    assert {name: METHODS[name] for name in _BUILT_IN} == _BUILT_IN
    assert [name for name in METHODS if name in _BUILT_IN] == list(_BUILT_IN)


@pytest.mark.parametrize("name", _BUILT_IN)
def test_scores_are_in_eval_mode_and_change_nothing(name):
    """With gradients or without, during a task: no statistics are updated, and images do not affect each other."""
    method = make(name)
    assert method.setting.batch_norm == "running"
    method.begin_task(TASKS[0])
    method.observe(batch(method, 0, 0))
    images = batch(method, 0, 1).images
    state, random_state = copy.deepcopy(method.state_dict()), torch.get_rng_state()
    scores = method.scores(images)
    assert scores.shape == (len(images), len(TASKS[0])) and scores.dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(method.scores(images), scores)
        torch.testing.assert_close(torch.cat([method.scores(image[None]) for image in images]), scores.detach())
    assert same(method.state_dict(), state) and torch.equal(torch.get_rng_state(), random_state)


def test_a_batch_has_only_the_labels_of_its_task():
    labels = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    given = Batch(torch.zeros(2, 3, 4, 4), labels, labels >= 0, ("sky", "sea"))
    assert given.label("sky").tolist() == [0, 1]
    with pytest.raises(HiddenLabel) as hidden:
        given.label("boat")
    assert str(hidden.value) == "the label 'boat' is hidden: the classes of this task are sky, sea"
