"""Frozen networks in ONNX Runtime."""

import sys

import pytest
import torch
from torch import nn

from lifelabel.nn import onnx_runtime
from lifelabel.nn.backbones import build
from lifelabel.nn.freezing import inference_copy
from lifelabel.nn.onnx_runtime import OnnxFeatures, fastest_forward

EXAMPLE = torch.zeros(1, 3, 64, 64)


@pytest.fixture
def tiny():
    torch.manual_seed(0)
    return inference_copy(build("tiny").eval())


def test_features_agree_for_every_batch_size(tiny, capfd):
    state = torch.random.get_rng_state()
    features = fastest_forward(tiny, EXAMPLE)
    assert isinstance(features, OnnxFeatures)
    assert torch.equal(torch.random.get_rng_state(), state)
    for count in (1, 2, 5):
        images = torch.randn(count, 3, 64, 64)
        torch.testing.assert_close(features(images), tiny(images), rtol=1e-4, atol=1e-4)
    assert capfd.readouterr() == ("", "")


def test_results_that_differ_are_refused(tiny, monkeypatch):
    monkeypatch.setattr(onnx_runtime, "_TOLERANCE", -1.0)
    with pytest.raises(RuntimeError, match="differs from torch"):
        OnnxFeatures(tiny, EXAMPLE)
    assert fastest_forward(tiny, EXAMPLE) is tiny


def test_a_module_that_cannot_be_exported_runs_in_torch():
    class Chooses(nn.Module):
        def forward(self, images):
            return images if float(images.sum()) > 0 else -images

    module = Chooses()
    assert fastest_forward(module, EXAMPLE) is module


def test_without_onnx_runtime_the_module_runs_in_torch(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert fastest_forward(tiny, EXAMPLE) is tiny
    with pytest.raises(ImportError):
        OnnxFeatures(tiny, EXAMPLE)
