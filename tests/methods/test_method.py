"""What all methods share."""

import copy

import numpy as np
import pytest
import torch
from support.methods import same
from support.replay import TASKS, batch, make

from lifelabel.errors import HiddenLabel
from lifelabel.methods import METHODS, Batch, HostBatch
from lifelabel.nn import backbones
from lifelabel.nn.inference import InferenceNetwork


@pytest.mark.parametrize("name", METHODS)
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
    assert str(hidden.value) == "the label 'boat' is hidden: the visible classes are sky, sea"


@pytest.mark.parametrize("name", METHODS)
def test_the_network_for_use_gives_the_scores_of_the_method(name):
    """After two tasks, also if it is restored from plain values and tensors. Training can go on."""
    method = make(name, **({"warm_up": 4} if name == "l3a" else {}))
    for task, classes in enumerate(TASKS):
        method.begin_task(classes)
        for step in range(3):
            method.observe(batch(method, task, step))
        method.end_task()
    images = batch(method, 0, 9).images
    with torch.no_grad():
        expected = method.scores(images)
        network = method.network()
        torch.testing.assert_close(network.eval()(images), expected, rtol=1e-4, atol=1e-4)
        tensors = {key: tensor.clone() for key, tensor in network.state_dict().items()}
        restored = InferenceNetwork.restore(backbones.build("tiny"), network.describe(), tensors)
        torch.testing.assert_close(restored(images), expected, rtol=1e-4, atol=1e-4)
    before = copy.deepcopy(method.state_dict())
    method.begin_task(("more",))
    more = Batch(images, torch.ones(len(images), 1), torch.ones(len(images), 1, dtype=torch.bool), ("more",),
                 HostBatch(torch.zeros(len(images), 32, 32, 3, dtype=torch.uint8), np.ones((len(images), 1), bool),
                           np.ones((len(images), 1), bool)))  # fmt: skip
    method.observe(more)
    assert not same(method.state_dict(), before)
