"""Exported networks: torch programs and ONNX models, and ONNX Runtime. docs/performance.md compares it with torch."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_TOLERANCE = 1e-4
"""The largest difference from torch, relative to the largest value of an output."""


def fastest_forward(module: nn.Module, example: Tensor) -> Callable[[Tensor], Tensor]:
    """The fastest function that computes `module(images)` in eval mode, for images of the shape of `example`.

    The number of images may differ. On the CPU this is an `OnnxFeatures` if ONNX Runtime is installed and agrees with
    torch. Otherwise it is `module`. Its weights must not change afterwards.
    """
    if example.device.type == "cpu":
        with contextlib.suppress(ImportError, RuntimeError):
            return OnnxFeatures(module, example)
    return module


class OnnxFeatures:
    """A frozen network in ONNX Runtime: images (B x 3 x H x W, float32) to features.

    H and W are those of `example`, B is any number. Raises ImportError without ONNX Runtime, and RuntimeError if the
    network cannot be exported or its results differ from those of torch. No file is written.
    """

    def __init__(self, module: nn.Module, example: Tensor):
        import onnxruntime  # noqa: F401  # before the export, which takes seconds
        import onnxscript  # noqa: F401

        images = torch.randn(3, *example.shape[1:], generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            expected = module(images)
        try:
            batch = {0: "batch"}
            program = export_onnx(export_program(module, images, batch), batch, (["images"], None))
            self.session = open_session(program.model_proto.SerializeToString())
            found = self(images)
        except Exception as error:  # the exporter and ONNX Runtime raise errors of many types
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise RuntimeError(f"ONNX Runtime cannot run the network: {reason}") from error
        difference = float((expected - found).abs().max() / expected.abs().max().clamp(min=1e-12))
        if not difference <= _TOLERANCE:  # NaN too
            raise RuntimeError(f"ONNX Runtime differs from torch by {difference:.1e}")

    def __call__(self, images: Tensor) -> Tensor:
        return torch.from_numpy(self.session.run(None, {"images": images.numpy(force=True)})[0])


def export_program(module: nn.Module, example: Tensor, dynamic: Mapping[int, str]) -> torch.export.ExportedProgram:
    """The forward pass of a module in eval mode, as a program of torch.

    `dynamic` names the dimensions of the input that may have any size. They need a size of at least 2 in `example`: a
    size of 1 would be exported as a constant. The program has neither the example nor the paths of source files.
    """
    dims = {dim: torch.export.Dim(name, min=1) for dim, name in dynamic.items()}
    with torch.no_grad(), _silent():
        program = torch.export.export(module, (example,), dynamic_shapes=(dims,))
    program.example_inputs = None
    for graph in (each.graph for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule)):
        for node in graph.nodes:
            node.meta.pop("stack_trace", None)
    return program


def export_onnx(
    program: torch.export.ExportedProgram,
    dynamic: Mapping[int, str],
    names: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None),
    opset: int | None = None,
) -> torch.onnx.ONNXProgram:
    """A program of torch with one input as an ONNX model, with the `names` of its inputs and outputs.

    Raises ImportError without onnx and onnxscript, and RuntimeError if the model cannot have the version `opset`.
    """
    with torch.no_grad(), _silent():
        exported = torch.onnx.export(
            program, (), dynamo=True, verbose=False, dynamic_shapes=(dict(dynamic),), opset_version=opset,
            input_names=names[0], output_names=names[1],
        )  # fmt: skip
    assert exported is not None
    if opset is not None and exported.model.opset_imports.get("") != opset:
        raise RuntimeError(f"the exporter cannot write opset {opset}")
    graph = exported.model.graph
    nodes: list[Any] = list(graph.all_nodes())
    values = [output for node in nodes for output in node.outputs]
    for item in [graph, *graph.inputs, *nodes, *values]:
        item.metadata_props.clear()  # notes of the exporter: half of the bytes of a small model
    return exported


def open_session(model: bytes | Path) -> Any:
    """An ONNX Runtime session on the CPU with as many threads as torch uses."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # its threads would otherwise wait actively, and slow down those of torch
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    given = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """No warnings and no messages of the exporter."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("torch.onnx", "onnxscript"))}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
