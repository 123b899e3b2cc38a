"""Settings of methods and networks for tests of `lifelabel.nn`."""

import torch
from torch import nn

from lifelabel.config.config import Config
from lifelabel.engine import setup

CPU = torch.device("cpu")


def make_setting(device=CPU, **options):
    """The setting of a method with these options. A label word has four numbers."""
    config = Config.make(options, with_preset=False)
    return setup.make_setting(config, lambda labels: torch.zeros(len(labels), 4), device)


def with_statistics(net):
    """The same network, with batch norm that is not the identity, as if it had been trained."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 2)
                nn.init.uniform_(module.bias, -0.2, 0.2)
    return net
