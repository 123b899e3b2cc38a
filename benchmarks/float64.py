"""`lifelabel ARGS` with networks in float64, for `benchmarks.distributed --float64`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lifelabel.cli.main import main
from lifelabel.engine import setup
from lifelabel.nn.graph import embed


def _embed(*arguments: Any) -> tuple[np.ndarray, list[str]]:
    vectors, missing = embed(*arguments)
    return vectors.astype(np.float64), missing


def use_float64() -> None:
    """From now on, networks and losses of this process are in float64."""
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    torch.float32 = torch.float64  # type: ignore[misc]
    setup.embed = _embed  # type: ignore[assignment]


if __name__ == "__main__":
    use_float64()
    main()
