import pytest
import torch

from lifelabel.errors import UserError
from lifelabel.nn.device import resolve_device, resolve_precision


def test_devices_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda")
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "unknown device 'gpu': give auto, cpu, cuda, cuda:N or mps"),
        ("meta", "device 'meta' is not supported: give auto, cpu, cuda, cuda:N or mps"),
        ("mps", "device 'mps' does not exist: torch reports no such Apple GPU; use cpu"),
        ("cuda:2", "device 'cuda:2' does not exist: torch reports 2 CUDA devices; use cpu"),
    ],
)
def test_other_devices_are_refused(name, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError) as caught:
        resolve_device(name)
    assert str(caught.value) == message


@pytest.fixture
def apple(monkeypatch):
    """A computer whose only GPU is that of Apple."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)


def test_mps_is_used_only_if_it_is_given(apple):
    assert resolve_device("mps") == torch.device("mps")
    assert resolve_device("mps:0").type == "mps"
    assert resolve_device("auto") == resolve_device("auto", float64=True) == torch.device("cpu")
    with pytest.raises(UserError, match="'mps:1' does not exist"):
        resolve_device("mps:1")


def test_mps_is_refused_for_methods_that_need_float64(apple):
    with pytest.raises(UserError) as caught:
        resolve_device("mps", float64=True)
    assert str(caught.value) == (
        "device 'mps' has no float64 numbers, which this method needs: use cpu, or another method"
    )


@pytest.mark.parametrize("device", ["cpu", "mps", "cuda"])
def test_a_given_precision_does_not_depend_on_the_device_and_auto_is_float32_without_a_gpu(device):
    assert [resolve_precision(p, torch.device(device)) for p in ("fp32", "bf16")] == ["fp32", "bf16"]
    assert device == "cuda" or resolve_precision("auto", torch.device(device)) == "fp32"


@pytest.mark.gpu
def test_auto_is_bfloat16_on_a_gpu_that_supports_it():
    expected = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    assert resolve_precision("auto", torch.device("cuda")) == expected
