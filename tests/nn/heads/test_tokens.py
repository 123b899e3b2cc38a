"""Cross-attention of tokens against loops over images, tokens and heads in float64; growth, freezing, restoring."""

import copy
import math

import numpy as np
import pytest
import torch
from support import methods

from lifelabel.nn.heads import TokenHead, build_head
from lifelabel.nn.learner import Learner

CPU = torch.device("cpu")


def head(*sizes, dim=5, width=8, heads=2):
    torch.manual_seed(2)
    made = TokenHead(dim, width, heads)
    for size in sizes:
        made.grow(size, CPU)
    with torch.no_grad():  # a token of standard deviation 0.02 would hide the residual connection
        for tokens in (made.old_retention, made.retention, made.transfer, made.positions):
            tokens.normal_()
        made.old_bias.normal_()
        made.bias.normal_()
    return made


def normal(row):
    centred = row - row.mean()
    return centred / np.sqrt((centred**2).mean() + 1e-5)


def slow_position(positions, y, x, height, width):
    """The position of one place: the corners of its cell in the grid of 7 x 7, weighted by their distance."""
    found = 0
    v, u = (min(max((k + 0.5) * 7 / size - 0.5, 0), 6) for k, size in ((y, height), (x, width)))
    for i, j in np.ndindex(7, 7):
        found = found + max(1 - abs(v - i), 0) * max(1 - abs(u - j), 0) * positions[7 * i + j]
    return found


def slow_embedding(weights, token, places, heads):
    """One task on one image: loops over heads and over what the transfer token attends to."""
    shared = weights["transfer"][0]
    seen = [normal(each) for each in (shared, token, *places)]
    size, mixed = len(token) // heads, np.zeros(len(token))
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        query = (weights["query.weight"] @ normal(shared))[part]
        scores = [query @ (weights["key.weight"] @ each)[part] / np.sqrt(size) for each in seen]
        shares = np.exp(scores) / np.exp(scores).sum()
        for share, each in zip(shares, seen, strict=True):
            mixed[part] += share * (weights["value.weight"] @ each)[part]
    output = shared + weights["output.weight"] @ mixed + weights["output.bias"]
    hidden = weights["mlp.0.weight"] @ normal(output) + weights["mlp.0.bias"]
    hidden = np.array([0.5 * each * (1 + math.erf(each / math.sqrt(2))) for each in hidden])
    return output + weights["mlp.2.weight"] @ hidden + weights["mlp.2.bias"]


def slow(made, maps):
    """The embeddings and the logits."""
    weights = {name: tensor.double().numpy() for name, tensor in made.state_dict().items()}
    retention, rows, biases = (
        np.concatenate([weights[f"old_{name}"], weights[name]]) for name in ("retention", "weight", "bias")
    )
    embeddings, logits = [], []
    for image in maps.double().numpy():
        places = [
            weights["project.weight"] @ image[:, y, x]
            + weights["project.bias"]
            + slow_position(weights["positions"], y, x, *image.shape[1:])
            for y, x in np.ndindex(*image.shape[1:])
        ]
        own = [slow_embedding(weights, token, places, made.heads) for token in retention]
        embeddings.append(own)
        task_of_class = np.repeat(np.arange(len(made.sizes)), made.sizes)
        logits.append([rows[c] @ normal(own[task]) + biases[c] for c, task in enumerate(task_of_class)])
    return np.array(embeddings), np.array(logits)


@pytest.mark.parametrize(("sizes", "shape"), [([3], (2, 3)), ([2, 2, 2], (7, 9)), ([3, 1, 1, 2], (4, 1))])
def test_embeddings_and_logits_equal_the_slow_computation(sizes, shape):
    made, maps = head(*sizes), torch.randn(3, 5, *shape)
    embeddings, logits = slow(made, maps)
    with torch.no_grad():
        np.testing.assert_allclose(made.embed(maps).numpy(), embeddings, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(made(maps).numpy(), logits, rtol=1e-4, atol=1e-5)


def test_growing_freezes_the_token_and_the_classifier_of_the_last_task_and_keeps_its_scores():
    made, maps = head(3, 2), torch.randn(3, 5, 2, 3)
    before, values = made(maps).detach(), copy.deepcopy(made.state_dict())
    made.grow(4, CPU)
    assert torch.equal(made(maps)[:, :5], before)
    assert torch.equal(made.old_retention, torch.cat([values["old_retention"], values["retention"]]))
    trained = {name: tuple(parameter.shape) for name, parameter in made.named_parameters() if parameter.requires_grad}
    assert (trained["retention"], trained["weight"], trained["bias"]) == ((1, 8), (4, 8), (4,))
    assert not any(name.startswith("old_") for name in trained)
    made(maps)[:, :5].sum().backward()  # logits of old classes train what all tasks share
    shared = made.transfer, made.positions, made.query.weight, made.mlp[0].weight
    assert all(each.grad.any() for each in shared) and not made.weight.grad.any()


def test_a_map_of_the_size_of_the_grid_has_the_learned_positions_themselves():
    made = head(2)
    assert torch.equal(made._positions(7, 7), made.positions)


def test_the_optimizer_of_a_task_has_its_token_its_classifier_and_the_shared_weights():
    method = methods.make("fine-tuning")
    made = head(2, dim=method.setting.backbone.dim)
    learner = Learner(made, method.setting)
    for first in (True, False):
        learner.begin_task(first_task=first)
        given = learner.optimizer.param_groups[1]["params"]
        assert {id(each) for each in given} == {id(each) for each in made.parameters()}
        assert sum(each is made.retention or each is made.weight or each is made.bias for each in given) == 3
        made.grow(3, CPU)


def test_numbers_that_do_not_fit_the_tensors_are_refused():
    given = head(3, 2, 2)
    for numbers in ({"heads": 3}, {"heads": 0}, {"heads": 2.0}, {"width": 16}, {"width": 8.0}, {"dim": 6}):
        changed = {**given.describe(), "numbers": {**given.numbers, **numbers}}
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            build_head(changed, given.state_dict())
