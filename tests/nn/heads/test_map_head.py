"""Heads on feature maps: built again from a description and tensors, in model folders and in experts."""

import copy

import pytest
import torch
from support import methods
from torch import nn

from lifelabel.errors import UserError
from lifelabel.nn import backbones
from lifelabel.nn.expert import MapExpert
from lifelabel.nn.heads import MapHead, build_head
from lifelabel.nn.heads import map_head as base
from lifelabel.nn.inference import InferenceNetwork, MapFeatures
from lifelabel.nn.learner import Learner


class Mean(MapHead):
    """A linear classifier of the mean over places, with rows that are added task by task."""

    kind = "mean of a test"

    def __init__(self, dim):
        super().__init__(dim=dim)
        self.rows = nn.ParameterList()

    def add_classes(self, new, device):
        self.rows.append(torch.randn(new, self.numbers["dim"]).to(device))

    def forward(self, maps):
        return maps.mean((2, 3)) @ torch.cat(list(self.rows)).T


def head(*sizes, dim=256):
    torch.manual_seed(1)
    made = Mean(dim)
    for size in sizes:
        made.grow(size, torch.device("cpu"))
    return made


NUMBERS = {
    Mean.kind: {"dim": 5},
    "tokens": {"dim": 4, "width": 4, "heads": 2},
    "class-graph": {"dim": 4, "width": 4, "sigmoid": 1},
    "matrix-graph": {"dim": 4, "words": 3, "width": 4, "hidden": 4, "length": 1.0, "average": 0},
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_head_is_built_from_its_description_and_its_tensors(kind):
    given = MapHead.kinds[kind](**NUMBERS[kind])
    for size in (3, 2, 2):
        given.grow(size, torch.device("cpu"))
    for tensor in given.state_dict().values():
        tensor.normal_()
    built = build_head(given.describe(), given.state_dict())
    assert built.sizes == [3, 2, 2] and built.describe() == given.describe()
    maps = torch.randn(4, NUMBERS[kind]["dim"], 2, 3)
    assert torch.equal(built(maps), given(maps))


@pytest.mark.parametrize(
    "changed",
    [
        {"sizes": [3]}, {"sizes": [3, 3]}, {"sizes": []}, {"sizes": [3, 0]}, {"sizes": [3, -2]}, {"sizes": "32"},
        {"sizes": [3, 10**12]}, {"sizes": [True, 2]}, {"numbers": {"dim": 10**6}}, {"numbers": {"dim": "5"}},
        {"numbers": {"dim": 5, "other": 1}}, {"numbers": []}, {"kind": "other"}, {"kind": None}, {"numbers": None},
    ],
)  # fmt: skip
def test_a_description_that_does_not_fit_is_refused_without_taking_memory(changed):
    given = head(3, 2, dim=5)
    with pytest.raises((KeyError, RuntimeError, TypeError, ValueError)):
        build_head({**given.describe(), **changed}, given.state_dict())


@pytest.mark.parametrize("kind", ["tokens", "class-graph", "matrix-graph"])
@pytest.mark.parametrize("name", ["width", "hidden", "dim", "heads", "words"])
def test_a_size_of_zero_is_refused(kind, name):
    made = MapHead.kinds[kind](**NUMBERS[kind])
    made.grow(2, torch.device("cpu"))
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        build_head({**made.describe(), "numbers": {**NUMBERS[kind], name: 0}}, made.state_dict())


def test_tensors_of_whole_numbers_are_refused():
    given = head(3, dim=5)
    with pytest.raises(ValueError, match="whole numbers"):
        build_head(given.describe(), {name: tensor.long() for name, tensor in given.state_dict().items()})


def test_many_images_are_scored_in_parts(monkeypatch):
    given, maps = head(3, 2, dim=5), torch.randn(7, 5, 2, 3)
    expected, sizes = given(maps), []
    monkeypatch.setattr(base, "_SCORED_ENTRIES", 3 * 5**2)
    given.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    torch.testing.assert_close(given.score(maps), expected)
    assert sizes == [3, 3, 1]


def test_the_network_of_a_head_is_restored_and_shows_evidence():
    network = InferenceNetwork(MapFeatures(backbones.build("tiny").eval()), head(2, 3))
    images = torch.randn(2, 3, 32, 32)
    tensors = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    restored = InferenceNetwork.restore(backbones.build("tiny"), network.describe(), tensors)
    with torch.no_grad():
        assert torch.equal(restored(images), network(images))
        torch.testing.assert_close(network.folded()(images), network(images), rtol=0, atol=1e-4)
    found = network.activation(images, [4])
    with torch.no_grad():  # a linear classifier of the mean: the map of a class is its row, applied at each place
        maps = network.backbone.body(images)
        expected = torch.einsum("bdhw,d->bhw", maps, network.classifier.rows[1][2]) / maps[0, 0].numel()
    torch.testing.assert_close(found[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_features_of_maps_are_pooled_maps():
    """In train mode, and in eval mode."""
    method = methods.make("fine-tuning")
    learner = Learner(head(2), method.setting)
    learner.begin_task(first_task=True)
    images = torch.randn(3, 3, 32, 32)
    before = copy.deepcopy(learner.backbone.state_dict())
    for maps, features in ((learner.train_maps, learner.train_features), (learner.eval_maps, learner.eval_features)):
        found = maps(images)
        assert found.shape == (3, 256, 4, 4) and found.requires_grad
        learner.backbone.load_state_dict(before)
        assert torch.equal(found.amax((2, 3)), features(images))
        learner.backbone.load_state_dict(before)


def test_the_expert_keeps_network_and_head_and_is_restored():
    setting = methods.make("fine-tuning").setting
    own = head(2)
    learner = Learner(own, setting)
    images = torch.randn(3, 3, 32, 32)
    expert = MapExpert(learner.backbone, own, setting)
    logits = expert.logits(images)
    restored = MapExpert.restore(copy.deepcopy(expert.state_dict()), learner.backbone, setting)
    own.grow(3, setting.device)
    with torch.no_grad():
        for parameter in (*learner.backbone.parameters(), *own.parameters()):
            parameter += 0.1
    assert torch.equal(expert.logits(images), logits) and torch.equal(restored.logits(images), logits)
    assert not logits.requires_grad and expert.nbytes == restored.nbytes > 0
    later = MapExpert(learner.backbone, own, setting, expert)
    assert later.backbone is expert.backbone and later.logits(images).shape == (3, 5)


def test_several_backbones_have_no_single_feature_map():
    backbone = backbones.build("tiny+tiny")
    with pytest.raises(UserError, match="one backbone"):
        MapFeatures(backbone)(torch.zeros(1, 3, 32, 32))
