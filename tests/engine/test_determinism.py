"""What two runs with the same seed have in common. docs/determinism.md states it, with the name of each test."""

import multiprocessing

import numpy as np
import pytest
import torch
from support import models
from support.methods import same
from support.run_files import snapshot

import lifelabel
from lifelabel.engine.checkpoint_file import load_checkpoint
from lifelabel.runs.folder import RunFolder

TIMED = {"environment.json", "checkpoint.pt", "checkpoint-previous.pt"}
"""They have times and memory: their other content is compared."""


def files(folder, without=()):
    return {name: data for name, data in snapshot(folder).items() if name not in TIMED and name not in without}


def state_of(folder):
    state = load_checkpoint(RunFolder(folder))
    return {name: state[name] for name in ("method", "random_state", "records", "stream", "words", "weights")}


@pytest.mark.parametrize("method", ["agcn", "er"])
def test_any_number_of_workers_gives_the_same_files(photographs, tmp_path, method):
    """And so does the same number of them: the two runs differ in the number of workers only."""
    given = {**photographs[0], "method": method, "augment": "crop-flip", "save_scores": True}
    for workers in (0, 2):
        lifelabel.train(tmp_path / str(workers), given, workers=workers)
    one, two = (files(tmp_path / str(workers), {"config.yaml"}) for workers in (0, 2))
    assert one.keys() == two.keys() and {"metrics.json", "scores.npz", "model/model.safetensors"} <= one.keys()
    assert [name for name in one if one[name] != two[name]] == []
    assert same(*(state_of(tmp_path / str(workers)) for workers in (0, 2)))


def scores_with(threads):
    torch.set_num_threads(threads)
    method = models.learned("fine-tuning")
    return method.scores(method.setting.backbone.normalize(models.pixels())).detach().numpy()


def test_another_number_of_threads_changes_scores_by_rounding_only():
    # in processes of their own: a process that has used two threads cannot be forked by later tests
    context = multiprocessing.get_context("fork")
    with context.Pool(1, maxtasksperchild=1) as pool:
        one, two = pool.map(scores_with, (1, 2), chunksize=1)
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", ["agcn", "er", "weighted-ridge"])
def test_two_runs_with_the_same_seed_on_a_gpu_are_bit_equal(method, precision, tmp_path):
    given = {"train_images": 1600, "test_images": 400}
    more = {"method_options": {"warm_up": 100}} if method == "weighted-ridge" else {}
    for n in ("0", "1"):
        lifelabel.train(tmp_path / n, more, method=method, stream_options=given, device="cuda", precision=precision)
    one, two = (files(tmp_path / n) for n in ("0", "1"))
    assert [name for name in one if one[name] != two[name]] == []


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_on_a_gpu_is_verified_on_both_devices(precision, tmp_path):
    given = {"train_images": 400, "test_images": 400}
    run = lifelabel.train(tmp_path, method="agcn", stream_options=given, device="cuda", precision=precision)
    for where in ("cpu", "cuda"):
        verification = lifelabel.verify(run.folder, device=where)
        print(precision, where, verification.checks[-1].found)
        assert verification.ok, verification
