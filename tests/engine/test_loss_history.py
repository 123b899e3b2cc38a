"""The losses of every step in history.jsonl."""

import json

import pytest
import torch

from lifelabel.engine.loss_history import _INTERVAL, LossHistory
from lifelabel.errors import NotFinite
from lifelabel.runs.lines import JsonLines


@pytest.fixture
def file(tmp_path):
    file = JsonLines(tmp_path / "history.jsonl", 0)
    yield file
    file.close()


def step(number, images=8, task=1, **losses):
    line = {"task": task + 1, "step": number, "images": images * number}
    return line, images, {name: torch.tensor(value) for name, value in losses.items()}


def lines(file, tmp_path):
    file.sync()
    return [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]


def test_losses_are_written_in_order_one_group_later(file, tmp_path):
    calls = []
    history = LossHistory(file, lambda *call: calls.append(call))
    for number in range(1, 2 * _INTERVAL):
        history.add(*step(number, cls=number / 4, dst=0.5))
    assert lines(file, tmp_path) == [] and calls == []  # the first group is copied, the second is not complete
    history.add(*step(2 * _INTERVAL, cls=0.0, dst=0.5))
    assert len(lines(file, tmp_path)) == _INTERVAL
    assert calls == [(1, 8 * _INTERVAL, {"cls": _INTERVAL / 4, "dst": 0.5})]
    history.add(*step(2 * _INTERVAL + 1, cls=1.0, dst=0.5))
    history.flush()
    written = lines(file, tmp_path)
    assert written[2] == {"task": 2, "step": 3, "images": 24, "losses": {"cls": 0.75, "dst": 0.5}}
    assert [line["step"] for line in written] == list(range(1, 2 * _INTERVAL + 2))
    assert [images for _, images, _ in calls] == [8 * _INTERVAL, 8 * _INTERVAL, 8]
    history.flush()
    assert len(lines(file, tmp_path)) == len(written) and len(calls) == 3  # nothing is written twice


def test_losses_may_change_their_names_after_a_flush(file, tmp_path):
    history = LossHistory(file, lambda *call: None)
    history.add(*step(1, cls=1.0))
    history.flush()
    history.add(*step(1, task=2, cls=1.0, dst=2.0))
    history.flush()
    assert [line["losses"] for line in lines(file, tmp_path)] == [{"cls": 1.0}, {"cls": 1.0, "dst": 2.0}]


def test_a_method_may_have_no_loss(file, tmp_path):
    calls = []
    history = LossHistory(file, lambda *call: calls.append(call))
    history.add(*step(1))
    history.flush()
    assert lines(file, tmp_path) == [{"task": 2, "step": 1, "images": 8, "losses": {}}] and calls == [(1, 8, {})]


def test_steps_with_and_without_losses_may_be_in_one_group(file, tmp_path):
    """A method that warms up by gradient and goes on in closed form."""
    calls = []
    history = LossHistory(file, lambda *call: calls.append(call))
    given = [{"cls": 0.5, "dst": 2.0}, {}, {"cls": 0.25}, {}, {"dst": 3.0, "cls": 1.0}]
    for number, losses in enumerate(given * _INTERVAL, 1):
        history.add(*step(number, **losses))
    history.flush()
    written = lines(file, tmp_path)
    assert [line["losses"] for line in written] == given * _INTERVAL
    assert [line["step"] for line in written] == list(range(1, 5 * _INTERVAL + 1))
    assert len(calls) == 5 and all(losses == given[-1] for _, _, losses in calls)


def test_a_loss_after_steps_without_one_is_checked(file, tmp_path):
    history = LossHistory(file, lambda *call: pytest.fail("the steps were reported"))
    for number, losses in enumerate(({"cls": 1.0}, {}, {"cls": float("nan")}), 1):
        history.add(*step(number, **losses))
    with pytest.raises(NotFinite, match=r"^the loss 'cls' is nan$") as raised:
        history.flush()
    assert raised.value.step == 3
    assert [line["losses"] for line in lines(file, tmp_path)] == [{"cls": 1.0}, {}]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_an_error_with_its_step(value, file, tmp_path):
    history = LossHistory(file, lambda *call: pytest.fail("the steps were reported"))
    history.add(*step(1, cls=1.0))
    history.add(*step(2, cls=value))
    with pytest.raises(NotFinite, match=f"^the loss 'cls' is {value}$") as raised:
        history.flush()
    assert raised.value.step == 2
    assert [line["step"] for line in lines(file, tmp_path)] == [1]
