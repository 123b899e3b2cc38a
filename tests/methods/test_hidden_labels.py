"""`method.hidden_labels`: hidden labels of seen classes are not part of the loss, or count as 0."""

import dataclasses

import numpy as np
import pytest
import torch
from support.methods import Float64Network, batch, cross_entropy, images_of, learn_first_task, make

from lifelabel import LinearHead
from lifelabel.methods import METHODS

WITH_OPTION = [
    name for name in METHODS if "hidden_labels" in {field.name for field in dataclasses.fields(METHODS[name].Options)}
]


def test_methods_whose_losses_are_on_labels_alone_have_the_option():
    assert sorted(WITH_OPTION) == ["agem", "der++", "er", "ewc", "fine-tuning", "ocdm", "prs", "rm"]


def padded(labels, offset):
    """{column: label} of all 5 seen classes for each image, 0 where it shows none."""
    rows = np.zeros((len(labels), 5))
    rows[:, offset : offset + labels.shape[1]] = labels
    return [dict(enumerate(row)) for row in rows]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", WITH_OPTION)
def test_negative_trains_every_hidden_label_as_0(name, reduction):
    more = {} if name in ("fine-tuning", "ewc") else {"replay_batch": 50}
    method = learn_first_task(make(name, reduction=reduction, hidden_labels="negative", batch_norm="frozen", **more))
    given, network = batch(method, 1, 0), Float64Network(method, frozen=True)
    assert not given.known.all()
    items = list(method.buffer.items) if more else []
    expected = {"cls": cross_entropy(network.logits(given.images), padded(given.labels.numpy(), 2), reduction)}
    if items:
        stored = padded(np.stack([item.labels for item in items]), 0)  # all are of the first task
        expected["replay"] = cross_entropy(network.logits(images_of(items)), stored, reduction)
    found = method.observe(given)
    assert {key: found[key].item() for key in expected} == pytest.approx(
        {key: part.item() for key, part in expected.items()}, rel=1e-4
    )


@pytest.mark.parametrize("name", ["fine-tuning", "ewc"])
@pytest.mark.parametrize(("hidden", "changes"), [("masked", False), ("negative", True)])
def test_only_negative_changes_the_classifiers_of_old_classes(name, hidden, changes):
    method = learn_first_task(make(name, hidden_labels=hidden, **({"strength": 0.0} if name == "ewc" else {})))
    before = [part.detach().clone() for part in (method.head.weights[0], method.head.biases[0])]
    method.observe(batch(method, 1, 0))
    after = method.head.weights[0], method.head.biases[0]
    assert [not torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [changes, changes]


def test_fisher_is_over_the_labels_of_the_loss():
    """With hidden labels as 0, the predictions of old classes are in the loss, so their weights matter too."""
    for hidden, measured in (("masked", False), ("negative", True)):
        method = learn_first_task(make("ewc", hidden_labels=hidden))
        method.observe(batch(method, 1, 0))
        assert isinstance(method.head, LinearHead)
        tail = sum(part.numel() for part in (*method.head.weights, *method.head.biases))
        old = method.head.weights[0].numel() + method.head.biases[0].numel()
        assert bool(method.squares[-tail:][:old].any()) == measured


class KnowsAll:
    """The methods of a stream of 7 classes, of which the first two tasks have 5."""

    @pytest.fixture(autouse=True)
    def setting(self, monkeypatch):
        make = METHODS["fine-tuning"].__init__

        def init(method, setting, options):
            make(method, dataclasses.replace(setting, classes=7), options)

        monkeypatch.setattr(METHODS["fine-tuning"], "__init__", init)


class TestNegativeAll(KnowsAll):
    @pytest.mark.parametrize("name", WITH_OPTION)
    def test_future_classes_are_trained_as_0_and_never_scored(self, name):
        method = (
            make(name, hidden_labels="negative-all", strength=0.0)
            if name == "ewc"
            else make(name, hidden_labels="negative-all")
        )
        method = learn_first_task(method, steps=3)
        before = [rows[5:].detach().clone() for rows in method.head.rows()]
        given = batch(method, 1, 0)
        assert method.targets(given.labels, given.known)[0].shape == (4, 7)
        method.observe(given)
        assert all(not torch.equal(a, b[5:]) for a, b in zip(before, method.head.rows(), strict=True))
        assert method.scores(given.images).shape == (4, 5) and method.head.rows_so_far == 7
        if name in ("der++",):
            assert {len(item.logits) for item in method.buffer.items} <= {2, 5}

    def test_its_state_is_restored_by_a_stream_with_more_classes(self):
        method = learn_first_task(make("er", hidden_labels="negative-all"))
        other = make("er", hidden_labels="negative-all")
        other.first_rows = 9  # of a stream that an extension has made longer
        other.load_state_dict(method.state_dict())
        assert other.head.rows_so_far == 7
        other.begin_task([f"new {number}" for number in range(4)])
        assert other.head.rows_so_far == 9
        assert other.scores(batch(method, 1, 0).images).shape == (4, 9)
