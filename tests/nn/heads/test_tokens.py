"""Cross-attention of tokens against loops over images, tokens and heads in float64; growth, freezing, restoring."""

import copy

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
        for tokens in (made.old_retention, made.retention, made.transfer):
            tokens.normal_()
        made.old_bias.normal_()
        made.bias.normal_()
    return made


def normal(row):
    centred = row - row.mean()
    return centred / np.sqrt((centred**2).mean() + 1e-5)


def slow_output(weights, token, places, heads):
    """One token on one image: loops over heads and over what it attends to."""
    seen = [normal(place) for place in places] + [normal(token)]
    size, mixed = len(token) // heads, np.zeros(len(token))
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        query = (weights["query.weight"] @ normal(token))[part]
        scores = [query @ (weights["key.weight"] @ each)[part] / np.sqrt(size) for each in seen]
        shares = np.exp(scores) / np.exp(scores).sum()
        for share, each in zip(shares, seen, strict=True):
            mixed[part] += share * (weights["value.weight"] @ each)[part]
    return token + weights["output.weight"] @ mixed + weights["output.bias"]


def slow(made, maps):
    """The embeddings and the logits."""
    weights = {name: tensor.double().numpy() for name, tensor in made.state_dict().items()}
    retention, rows, biases = (
        np.concatenate([weights[f"old_{name}"], weights[name]]) for name in ("retention", "weight", "bias")
    )
    embeddings, logits = [], []
    for image in maps.double().numpy():
        places = [
            weights["project.weight"] @ image[:, y, x] + weights["project.bias"]
            for y, x in np.ndindex(*image.shape[1:])
        ]
        shared = slow_output(weights, weights["transfer"][0], places, made.heads)
        own = [normal(slow_output(weights, token, places, made.heads) + shared) for token in retention]
        embeddings.append(own)
        task_of_class = np.repeat(np.arange(len(made.sizes)), made.sizes)
        logits.append([rows[c] @ own[task] + biases[c] for c, task in enumerate(task_of_class)])
    return np.array(embeddings), np.array(logits)


@pytest.mark.parametrize("sizes", [[3], [2, 2, 2], [3, 1, 1, 2]])
def test_embeddings_and_logits_equal_the_slow_computation(sizes):
    made, maps = head(*sizes), torch.randn(3, 5, 2, 3)
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
    assert made.transfer.grad.any() and made.query.weight.grad.any() and not made.weight.grad.any()


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
