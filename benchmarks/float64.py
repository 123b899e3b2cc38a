"""`lifelabel ARGS` with networks in float64, for `benchmarks.distributed --float64`."""

from __future__ import annotations

import torch

from lifelabel.cli.main import main

if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    main()
