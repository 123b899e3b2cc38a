"""The head of CSC against its equations, computed slowly: image by image, class by class, place by place."""

import copy
import math

import numpy as np
import pytest
import torch

from lifelabel.nn.heads import ClassGraphHead, build_head

DIM, WIDTH = 5, 4


def head(*sizes, sigmoid=0, dtype=torch.float64):
    """A head with random parameters: also those that begin as zeros or as the identity."""
    torch.manual_seed(1)
    made = ClassGraphHead(DIM, WIDTH, sigmoid).to(dtype)
    for size in sizes:
        made.grow(size, torch.device("cpu"))
    made.to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return made


def leaky(values):
    return [value if value > 0 else 0.2 * value for value in values]


def times(matrix, vector):
    """A matrix of rows, times a vector."""
    return [sum(float(a) * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def add(*vectors):
    return [sum(values) for values in zip(*vectors, strict=True)]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def weighted_sum(weights, vectors):
    return [sum(w * vector[k] for w, vector in zip(weights, vectors, strict=True)) for k in range(len(vectors[0]))]


def slow_logits(net, image):
    """The logits of one feature map (dim x h x w)."""
    p = {name: value.tolist() for name, value in net.state_dict().items()}
    count = len(p["bias"])
    places = [image[:, i, j].tolist() for i in range(image.shape[1]) for j in range(image.shape[2])]
    features = [add(times(p["project.weight"], place), p["project.bias"]) for place in places]
    scores = [times(places, row) for row in p["class_maps"]]  # by class, by place
    v0 = []
    for row in scores:
        if net.numbers["sigmoid"]:
            weights = [sigmoid(score) for score in row]
        else:
            weights = [math.exp(score) / sum(math.exp(each) for each in row) for score in row]
        v0.append(weighted_sum(weights, features))
    of_v0 = [times(p["general.weight"], node) for node in v0]
    v1 = [add(v0[i], leaky(weighted_sum(p["adjacency"][i], of_v0))) for i in range(count)]
    mean = [sum(node[k] for node in v1) / count for k in range(WIDTH)]
    g = leaky(add(times(p["mean.weight"], mean), p["mean.bias"]))
    of_v1 = [times(p["specific.weight"], node) for node in v1]
    logits = []
    for i in range(count):
        relations = []
        for j in range(count):  # the weight of class j in the node of class i
            both = [*p["from_mean"][j], *p["from_node"][j]]
            score = sum(a * b for a, b in zip(both, [*g, *v1[i]], strict=True)) + p["relation_bias"][j]
            relations.append(sigmoid(score) / count)
        v2 = add(v1[i], leaky(weighted_sum(relations, of_v1)))
        own = sum(a * b for a, b in zip(p["classifier"][i], v2, strict=True)) + p["bias"][i]
        logits.append((max(scores[i]) + own) / 2)
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


def test_the_head_is_built_again_from_its_description():
    net = head(3, 2, sigmoid=1, dtype=torch.float32)
    built = build_head(net.describe(), net.state_dict())
    maps = torch.randn(1, DIM, 3, 3)
    assert torch.equal(built(maps), net(maps)) and built.describe() == net.describe()
