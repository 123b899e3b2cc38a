"""Gradients that tests compare."""

import pytest

from lifelabel.nn.learner import Learner


@pytest.fixture(autouse=True)
def kept_gradients(monkeypatch):
    """A learner frees the gradients of a step when it ends. Here they are kept until the next step."""
    step = Learner.step

    def step_and_keep(self, loss):
        self.optimizer.zero_grad(set_to_none=True)
        with monkeypatch.context() as patch:
            patch.setattr(self.optimizer, "zero_grad", lambda **_: None)
            step(self, loss)

    monkeypatch.setattr(Learner, "step", step_and_keep)
