"""The content of a checkpoint. tests/engine/test_run.py has checkpoints that do not fit their run."""

import torch

from lifelabel.engine.checkpoint import Progress, get_random_state, set_random_state


def test_progress_is_restored_from_plain_values(tmp_path):
    progress = Progress(1, 2, 30, 4.5, [{"task": 1}], 14, {7, 3}, {9})
    state = progress.to_dict()
    assert (state["bad_train"], state["bad_test"]) == ([3, 7], [9])
    torch.save(state, tmp_path / "state.pt")
    assert Progress.from_dict({**torch.load(tmp_path / "state.pt", weights_only=True), "more": 1}) == progress


def test_random_states_are_restored():
    before = torch.get_rng_state()
    try:
        state = get_random_state([])
        expected = torch.rand(3)
        set_random_state(state, [])
        assert torch.equal(torch.rand(3), expected)
    finally:
        torch.set_rng_state(before)
