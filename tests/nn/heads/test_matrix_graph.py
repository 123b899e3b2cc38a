"""The head of AGCN++ against its equations, computed slowly: image by image, class by class, place by place."""

import math

import numpy as np
import pytest
import torch

from lifelabel.nn.heads import MatrixGraphHead

DIM, WORDS, WIDTH, HIDDEN = 5, 3, 4, 6


def head(*sizes, length=1.5, average=0):
    torch.manual_seed(2)
    made = MatrixGraphHead(DIM, WORDS, WIDTH, HIDDEN, length, average)
    for size in sizes:
        made.grow(size, torch.device("cpu"))
    made.embeddings.copy_(torch.randn(sum(sizes), WORDS))
    made.adjacency.copy_(torch.rand(sum(sizes), sum(sizes)))
    return made


def slow_features(net, places):
    """The features of each class of one image."""
    p = {name: value.numpy() for name, value in net.state_dict().items()}
    found = []
    for word in p["embeddings"]:
        weights = np.array([math.exp(place @ (p["query.weight"] @ word) / math.sqrt(DIM)) for place in places])
        projected = [p["project.weight"] @ place + p["project.bias"] for place in places]
        mean = sum(w * each for w, each in zip(weights / weights.sum(), projected, strict=True))
        found.append(net.numbers["length"] * mean / math.sqrt(mean @ mean))
    return found


def slow_layer(adjacency, nodes, weight):
    return [sum(a * node for a, node in zip(row, nodes, strict=True)) @ weight for row in adjacency]


def slow_logits_and_nodes(net, image):
    places = [image[:, i, j].numpy() for i, j in np.ndindex(*image.shape[1:])]
    words, adjacency = net.embeddings.numpy(), net.adjacency.numpy()
    w1, w2 = (weight.numpy() for weight in net.network.state_dict().values())
    nodes = [np.concatenate(both) for both in zip(words, slow_features(net, places), strict=True)]
    hidden = [np.where(row > 0, row, 0.2 * row) for row in slow_layer(adjacency, nodes, w1)]
    nodes = slow_layer(adjacency, hidden, w2)
    pooled = np.mean(places, 0) if net.numbers["average"] else np.max(places, 0)
    return [node @ pooled for node in nodes], nodes


@pytest.mark.parametrize("average", [0, 1])
def test_logits_and_nodes_equal_the_slow_computation(average):
    net = head(3, 2, average=average).double()
    maps = torch.randn(3, DIM, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        logits, nodes = net.logits_and_nodes(maps)
        assert torch.equal(net(maps), logits)
    for image, *got in zip(maps, logits.numpy(), nodes.numpy(), strict=True):
        for ours, expected in zip(got, slow_logits_and_nodes(net, image), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)


def test_a_new_class_changes_no_parameter_and_no_unrelated_node():
    net = head(3)
    parameters = {name: value.clone() for name, value in net.named_parameters()}
    words, adjacency, maps = net.embeddings.clone(), net.adjacency.clone(), torch.randn(2, DIM, 2, 2)
    before = net(maps)
    net.grow(2, torch.device("cpu"))
    net.embeddings[3:] = torch.randn(2, WORDS)
    assert torch.equal(net.embeddings[:3], words)
    assert torch.equal(net.adjacency, torch.block_diag(adjacency, torch.eye(2)))
    assert all(torch.equal(value, parameters[name]) for name, value in net.named_parameters())
    torch.testing.assert_close(net(maps)[:, :3], before)


def test_without_class_features_the_nodes_are_those_of_the_words():
    net = head(3, 2, length=0)
    _, nodes = net.logits_and_nodes(torch.randn(2, DIM, 2, 2))
    expected = net.network(net.adjacency, torch.cat([net.embeddings, torch.zeros(5, WIDTH)], 1))
    torch.testing.assert_close(nodes, expected.expand(2, -1, -1))
