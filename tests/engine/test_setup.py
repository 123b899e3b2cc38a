"""The setting of a method, from the configuration of a run."""

import pytest
import torch

from lifelabel.config.config import Config
from lifelabel.engine.setup import make_setting
from lifelabel.nn import cuda_graphs
from lifelabel.nn.cuda_graphs import _COMPILE_FROM

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def embed(labels):
    return torch.zeros(len(labels), 4)


def test_options_of_the_run_are_fields_of_the_setting():
    options = {
        "lr": 0.5, "backbone_lr": 0.25, "later_backbone_lr": 0.125, "batch_norm": "frozen", "adam_eps": 1e-3,
        "reduction": "sum", "augment": "none",
    }  # fmt: skip
    setting = make_setting(Config.make(options), embed, CPU)
    assert {name: getattr(setting, name) for name in options} == options
    assert (setting.embed, setting.device) == (embed, CPU)


def test_every_setting_has_a_new_backbone_of_the_chosen_kind():
    config = Config.make({"backbone": "resnet18", "weights": "none", "pool": "avg"})
    one, other = (make_setting(config, embed, CPU).backbone for _ in range(2))
    assert one is not other and one.dim == 512
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(one.eval()(images), one.body(images).mean((2, 3)))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_precision_is_resolved(precision):
    assert make_setting(Config.make({"precision": precision}), embed, CPU).precision == precision
    assert make_setting(Config.make({"precision": "auto"}), embed, CPU).precision == "fp32"


@pytest.mark.parametrize(
    ("option", "steps", "record", "compiled"),
    [
        ("off", _COMPILE_FROM, False, False),
        ("auto", _COMPILE_FROM - 1, True, False),
        ("auto", _COMPILE_FROM, True, True),
        ("on", 0, True, True),
    ],
)
def test_steps_are_recorded_and_compiled_only_on_a_gpu(option, steps, record, compiled, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "_missing_for_compile", lambda device: None)
    config = Config.make({"compile": option, "precision": "fp32"})
    on_gpu, on_cpu = (make_setting(config, embed, device, steps * config.batch_size) for device in (GPU, CPU))
    assert (on_gpu.record, on_gpu.compile) == (record, compiled)
    assert (on_cpu.record, on_cpu.compile) == (False, False)
