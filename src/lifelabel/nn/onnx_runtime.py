"""Frozen networks on the CPU by ONNX Runtime, if it is installed. docs/performance.md compares it with torch."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["OnnxFeatures", "fastest_forward"]

_TOLERANCE = 1e-4
"""The largest difference from torch, relative to the largest value of an output."""


def fastest_forward(module: nn.Module, example: Tensor) -> Callable[[Tensor], Any]:
    """The fastest function that computes `module(images)` in eval mode, for images of the shape of `example`.

    The number of images may differ. On the CPU this is an `OnnxFeatures` if ONNX Runtime is installed and agrees with
    torch. Otherwise it is `module`. Its weights must not change afterwards.
    """
    if example.device.type == "cpu":
        with contextlib.suppress(ImportError, RuntimeError):
            return OnnxFeatures(module, example)
    return module


class OnnxFeatures:
    """A frozen network in ONNX Runtime: images (B x 3 x H x W, float32) to a tensor or to a tuple of tensors.

    H and W are those of `example`, B is any number. Raises ImportError without ONNX Runtime, and RuntimeError if the
    network cannot be exported or its results differ from those of torch. No file is written.
    """

    def __init__(self, module: nn.Module, example: Tensor):
        import onnxruntime
        import onnxscript  # noqa: F401  # torch needs it for the export

        images = torch.randn(3, *example.shape[1:], generator=torch.Generator().manual_seed(0))
        with torch.no_grad(), _silent():
            expected = module(images)
            try:
                batch = {0: torch.export.Dim("batch")}
                # 2 images: the size of a batch of 1 would be exported as a constant
                program: Any = torch.onnx.export(
                    module, (images[:2],), dynamo=True, verbose=False, dynamic_shapes=(batch,)
                )
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = torch.get_num_threads()
                # its threads would otherwise wait actively, and slow down those of torch
                options.add_session_config_entry("session.intra_op.allow_spinning", "0")
                model = program.model_proto.SerializeToString()
                self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
                self.input = self.session.get_inputs()[0].name
                self.single = isinstance(expected, Tensor)
                found = self(images)
            except Exception as error:  # the exporter and ONNX Runtime raise errors of many types
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise RuntimeError(f"ONNX Runtime cannot run the network: {reason}") from error
        pairs = [(expected, found)] if self.single else zip(expected, found, strict=True)
        difference = max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-12)) for a, b in pairs)
        if not difference <= _TOLERANCE:  # NaN too
            raise RuntimeError(f"ONNX Runtime differs from torch by {difference:.1e}")

    def __call__(self, images: Tensor) -> Any:
        outputs = [torch.from_numpy(each) for each in self.session.run(None, {self.input: images.numpy(force=True)})]
        return outputs[0] if self.single else tuple(outputs)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """No warnings and no messages of the exporter."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
