"""Images that are shown again, in a run of several passes, are learned from, and not counted or stored again."""

import copy
import dataclasses

import pytest
import torch
from support.methods import same
from support.replay import TASKS, batch, learn_first_task, make

from lifelabel.methods import METHODS

COUNTED = {"buffer", "acm", "sums", "gram", "cross", "counts", "since", "pseudo_labels"}
"""What methods count or store once for each image, by its key in their states."""

SMALL = {"warm_up": 0, "projection": 8, "directions": 8, "hidden": 8}


def counted(method):
    return copy.deepcopy({key: value for key, value in method.state_dict().items() if key in COUNTED})


def shown_again(method, seed, **more):
    return dataclasses.replace(batch(method, 1, seed, **more), first_pass=False)


@pytest.mark.parametrize("name", METHODS)
def test_an_image_is_counted_once(name):
    names = {field.name for field in dataclasses.fields(METHODS[name].Options)}
    method = learn_first_task(make(name, **{option: value for option, value in SMALL.items() if option in names}))
    method.observe(batch(method, 1, 0))
    before, weights = counted(method), copy.deepcopy(method.state_dict().get("learner"))
    parts = method.observe(shown_again(method, 0))
    method.observe(shown_again(method, 1, count=1))
    assert same(counted(method), before)
    assert parts or before  # a closed form has sums, and nothing else to learn
    if weights is not None:
        assert not same(method.state_dict()["learner"], weights)
    method.end_task()
    assert method.logits(method.features(batch(method, 1, 0).images)).shape == (4, len(TASKS[0] + TASKS[1]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_recorded_step_of_the_first_pass_is_not_replayed_in_a_later_one():
    method = learn_first_task(make("agcn", device="cuda"))
    for seed in range(6):
        method.observe(batch(method, 1, seed))
    before = counted(method)
    for seed in range(6):
        method.observe(shown_again(method, seed))
    assert same(counted(method), before)
    method.observe(batch(method, 1, 6))
    assert not same(counted(method), before)
