"""The losses of every step in history.jsonl."""

import pytest
import torch
from engine.small_runs import read_lines

from lifelabel.engine.training import _INTERVAL, LossHistory
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
    return read_lines(tmp_path / "history.jsonl")


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


def test_steps_with_other_losses_and_without_one(file, tmp_path):
    """A method that warms up by gradient and goes on in closed form, also in one group."""
    calls = []
    history = LossHistory(file, lambda *call: calls.append(call))
    given = [{"cls": 0.5, "dst": 2.0}, {}, {"cls": 0.25}, {}, {"dst": 3.0, "cls": 1.0}]
    for number, losses in enumerate(given * _INTERVAL, 1):
        history.add(*step(number, **losses))
    history.flush()
    assert len(calls) == 5 and all(losses == given[-1] for _, _, losses in calls)
    history.add(*step(5 * _INTERVAL + 1))
    history.flush()  # a group without any loss
    assert calls[-1] == (1, 8, {})
    written = lines(file, tmp_path)
    assert [line["losses"] for line in written] == [*given * _INTERVAL, {}]
    assert [line["step"] for line in written] == list(range(1, 5 * _INTERVAL + 2))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_an_error_with_its_step(value, file, tmp_path):
    history = LossHistory(file, lambda *call: pytest.fail("the steps were reported"))
    for number, losses in enumerate(({"cls": 1.0}, {}, {"cls": value}), 1):
        history.add(*step(number, **losses))
    with pytest.raises(NotFinite, match=f"^the loss 'cls' is {value}$") as raised:
        history.flush()
    assert raised.value.step == 3
    assert [line["losses"] for line in lines(file, tmp_path)] == [{"cls": 1.0}, {}]
