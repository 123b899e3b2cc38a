import numpy as np
import torch

from lifelabel.nn.graph import GraphNetwork


def slow_layer(a, h, w, activate):
    out = np.zeros((len(h), w.shape[1]))
    for i in range(len(h)):
        for o in range(w.shape[1]):
            value = sum(a[i, j] * h[j, k] * w[k, o] for j in range(len(h)) for k in range(h.shape[1]))
            out[i, o] = value if value > 0 or not activate else 0.2 * value
    return out


def test_two_layers_equal_the_slow_computation():
    for activate_output in (False, True):
        torch.manual_seed(0)
        net = GraphNetwork(3, 5, 4, activate_output).double()
        assert sum(p.numel() for p in net.parameters()) == 3 * 5 + 5 * 4  # no bias, and no weight per class
        a, h = torch.rand(6, 6, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
        hidden = slow_layer(a.numpy(), h.numpy(), net.w1.detach().numpy(), True)
        out = slow_layer(a.numpy(), hidden, net.w2.detach().numpy(), activate_output)
        np.testing.assert_allclose(net(a, h).detach().numpy(), out, atol=1e-12)
