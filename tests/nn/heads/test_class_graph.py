"""The head of CSC against its equations, computed slowly: image by image, class by class, place by place."""

import copy

import numpy as np
import pytest
import torch

from lifelabel.nn.heads import ClassGraphHead

DIM, WIDTH = 5, 4


def head(*sizes, sigmoid=0):
    """A head with random parameters: also those that begin as zeros or as the identity."""
    torch.manual_seed(1)
    made = ClassGraphHead(DIM, WIDTH, sigmoid)
    for size in sizes:
        made.grow(size, torch.device("cpu"))
    made.double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return made


def leaky(values):
    return np.where(values > 0, values, 0.2 * values)


def sigmoid_of(x):
    return 1 / (1 + np.exp(-x))


def slow_logits(net, image):
    """The logits of one feature map (dim x h x w)."""
    p = {name: value.numpy() for name, value in net.state_dict().items()}
    count = len(p["bias"])
    places = [image[:, i, j].numpy() for i, j in np.ndindex(*image.shape[1:])]
    features = [p["project.weight"] @ place + p["project.bias"] for place in places]
    scores = [np.array([row @ place for place in places]) for row in p["class_maps"]]  # by class, by place
    v0 = []
    for row in scores:
        weights = sigmoid_of(row) if net.numbers["sigmoid"] else np.exp(row) / np.exp(row).sum()
        v0.append(sum(w * vector for w, vector in zip(weights, features, strict=True)))
    of_v0 = [p["general.weight"] @ node for node in v0]
    v1 = [v0[i] + leaky(sum(p["adjacency"][i, j] * of_v0[j] for j in range(count))) for i in range(count)]
    g = leaky(p["mean.weight"] @ (sum(v1) / count) + p["mean.bias"])
    logits = []
    for i in range(count):
        mixed = 0
        for j in range(count):  # the weight of class j in the node of class i
            both = np.concatenate([p["from_mean"][j], p["from_node"][j]])
            relation = sigmoid_of(both @ np.concatenate([g, v1[i]]) + p["relation_bias"][j]) / count
            mixed = mixed + relation * (p["specific.weight"] @ v1[j])
        v2 = v1[i] + leaky(mixed)
        logits.append((scores[i].max() + p["classifier"][i] @ v2 + p["bias"][i]) / 2)
    return logits


@pytest.mark.parametrize("sigmoid", [0, 1])
def test_the_logits_equal_the_slow_computation(sigmoid):
    net = head(3, 2, sigmoid=sigmoid)
    maps = torch.randn(3, DIM, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        got = net(maps).numpy()
    np.testing.assert_allclose(got, [slow_logits(net, image) for image in maps], rtol=1e-10)


def test_growing_keeps_the_values_of_all_old_parameters():
    net = head(3, 2)
    before = copy.deepcopy(net.state_dict())
    net.grow(4, torch.device("cpu"))
    for name, value in net.state_dict().items():
        old = before[name]
        assert torch.equal(value[tuple(slice(size) for size in old.shape)], old), name
    assert net.adjacency.shape == (9, 9) and net.sizes == [3, 2, 4]
    expected = torch.block_diag(before["adjacency"], torch.eye(4, dtype=torch.float64))
    assert torch.equal(net.adjacency, expected)  # the new classes have no relations yet
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_the_nodes_of_old_classes_do_not_change_in_the_first_layer_when_classes_are_added():
    net = head(3)
    with torch.no_grad():
        net.from_node.zero_(), net.from_mean.zero_(), net.relation_bias.fill_(-200)  # A_s = 0
    maps = torch.randn(2, DIM, 2, 2, dtype=torch.float64)
    before = net(maps)
    net.grow(2, torch.device("cpu"))
    with torch.no_grad():
        net.from_node[3:], net.from_mean[3:], net.relation_bias[3:] = 0, 0, -200
    torch.testing.assert_close(net.double()(maps)[:, :3], before)
