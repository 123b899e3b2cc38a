"""A finished model: labels and their probabilities for images of any kind."""

from __future__ import annotations

import contextlib
import itertools
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.module import register_module_parameter_registration_hook

from lifelabel.errors import UserError, unknown
from lifelabel.images.hashes import TrainedImages
from lifelabel.images.loader import SCORING_BYTES, Job, Loaded, Loader, default_workers
from lifelabel.images.source import ImageSource
from lifelabel.images.transforms import load_batch
from lifelabel.images.workers import WorkerDied
from lifelabel.model.info import ModelInfo
from lifelabel.model.inputs import ImageLike, Images, batches_of, is_single
from lifelabel.model.model_folder import find_model, read_model, read_trained, write_model
from lifelabel.nn import backbones
from lifelabel.nn.device import resolve_device, resolve_precision
from lifelabel.nn.heads import MapHead
from lifelabel.nn.inference import InferenceNetwork
from lifelabel.nn.normalize import Normalize
from lifelabel.runs.names import MODEL_INFO
from lifelabel.utils.text import counted, printable, shorten
from lifelabel.utils.transfer import HostCopy

_CPU_CHUNK = 8
"""Images per forward pass on the CPU. The activations of a larger batch do not fit the cache."""
_MAX_BATCH = 4096
_MAX_HEAD = 150_000_000
"""Parameters of a backbone that are built and then removed: those of the classifier of VGG are 124 million."""


def load(path: str | Path, device: str = "auto", precision: str = "auto") -> Model:
    """The model of a finished run, from its run folder or its model folder.

    `device` is auto, cpu, cuda, cuda:N or mps. `precision` is fp32, bf16 or auto: bf16 on a GPU that supports it.
    """
    if precision not in ("auto", "fp32", "bf16"):
        raise UserError(f"unknown precision '{shorten(precision)}': give auto, fp32 or bf16")
    where = resolve_device(str(device))
    folder = find_model(path)
    info, tensors = read_model(folder)
    model = Model(_restore(folder, info, tensors), info, where, precision)
    model.folder = folder
    return model


class Model:
    """A network, its classes, and how its logits become labels. `load` makes one from a folder.

    `network` takes normalized images (`network.backbone.normalize(pixels)`), and can be used by itself. `info` has
    everything else. A thread may use a model while another one does.
    """

    def __init__(
        self, network: InferenceNetwork, info: ModelInfo, device: torch.device | str = "cpu", precision: str = "auto"
    ):
        self.network, self.info, self._precision = network.eval(), info, precision
        self._lock = threading.Lock()
        self.folder: Path | None = None
        self.to(device)

    def __repr__(self) -> str:
        classes, size = counted(len(self.classes), "classes"), self.info.image_size
        return f"Model({self.info.label}, {classes}, {size} x {size} pixels, {self.device})"

    @property
    def classes(self) -> tuple[str, ...]:
        return self.info.classes

    @property
    def thresholds(self) -> np.ndarray:
        """For each class, the smallest probability at which it is a label of an image."""
        return np.array(self.info.thresholds or [0.5] * len(self.classes))

    def to(self, device: torch.device | str) -> Model:
        """Move the model to another device, and return it."""
        self.device = resolve_device(str(device))
        self.precision = resolve_precision(self._precision, self.device)
        fitting = max(1, min(256, SCORING_BYTES[self.device.type] // (3 * self.info.image_size**2)))
        self.batch_size = fitting if fitting < _CPU_CHUNK else fitting - fitting % _CPU_CHUNK
        self._sizes: set[int] = set()
        self._fast: InferenceNetwork | None = None
        self.network.to(self.device)
        return self

    def save(self, folder: str | Path) -> None:
        """Write the model to a model folder, with the thresholds and the calibration that it has now."""
        write_model(Path(folder), self.network, self.info, self.trained_images())

    def trained_images(self) -> TrainedImages | None:
        """Hashes of the images that the model was trained on. None if its folder does not have them."""
        return None if self.folder is None else read_trained(self.folder, self.info)

    def logits(self, pixels: Tensor) -> Tensor:
        """The logits (B x classes, float32, on the CPU) of pixels (B x S x S x 3, uint8; S is `info.image_size`)."""
        return _arrived(self._start(pixels))

    def probabilities(self, logits: Tensor) -> Tensor:
        """The probabilities of logits, calibrated if the model is."""
        if (calibration := self.info.calibration) is not None:
            logits = logits * logits.new_tensor(calibration["slope"]) + logits.new_tensor(calibration["shift"])
        return logits.sigmoid()

    def activation(self, pixels: Tensor, classes: Sequence[int]) -> Tensor | None:
        """Where in images the evidence for classes is (B x classes x h x w). None if the network has no feature maps.

        `pixels` are B x size x size x 3 bytes: see `InferenceNetwork.activation`.
        """
        with self._lock:
            found = self.network.activation(self.network.backbone.normalize(pixels), classes)
        return None if found is None else found.cpu()

    @torch.no_grad()
    def _start(self, pixels: Tensor, chunk: int | None = None) -> HostCopy:
        """The logits of pixels. On a GPU they arrive later."""
        if not len(pixels):
            return HostCopy(torch.zeros(0, len(self.classes)))
        with self._lock:  # a forward pass that records activations registers hooks
            if self._fast is None:
                fast = self.network if self.device.type == "cuda" else self.network.folded()
                self._fast = fast.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            if self.device.type != "cuda":
                found = [self._forward(self._fast, part) for part in pixels.split(_CPU_CHUNK)]
            else:
                chunk = chunk or self.batch_size
                found = [self._padded(self._fast, part, chunk) for part in pixels.split(chunk)]
            return HostCopy(torch.cat(found))

    def _forward(self, network: InferenceNetwork, pixels: Tensor) -> Tensor:
        images = network.backbone.normalize(pixels).contiguous(memory_format=torch.channels_last)
        autocast = torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bf16" else None
        with autocast or contextlib.nullcontext():
            features = network.features(images)
        classifier = network.classifier
        return (classifier.score if isinstance(classifier, MapHead) else classifier)(features.float())

    def _padded(self, network: InferenceNetwork, pixels: Tensor, limit: int) -> Tensor:
        """The forward pass on a GPU, in one of few sizes: cuDNN prepares its kernels for each size, in seconds."""
        count = len(pixels)
        power = 1 << (count - 1).bit_length()
        size = min((size for size in self._sizes if size >= count), default=min(power, limit))
        self._sizes.add(size)
        if size > count:
            pixels = torch.cat([pixels, pixels.new_zeros(size - count, *pixels.shape[1:])])
        return self._forward(network, pixels)[:count]

    @overload
    def predict(  # type: ignore[overload-overlap]  # text and arrays are iterable too
        self, images: ImageLike, threshold: float | None = None, top: int | None = None,
        batch_size: int | None = None, errors: Literal["raise"] = "raise",
    ) -> dict[str, float]: ...  # fmt: skip
    @overload
    def predict(
        self, images: Iterable[ImageLike], threshold: float | None = None, top: int | None = None,
        batch_size: int | None = None, errors: Literal["raise"] = "raise",
    ) -> list[dict[str, float]]: ...  # fmt: skip
    @overload
    def predict(  # type: ignore[overload-overlap]
        self, images: ImageLike, threshold: float | None = None, top: int | None = None,
        batch_size: int | None = None, *, errors: Literal["skip"],
    ) -> dict[str, float] | None: ...  # fmt: skip
    @overload
    def predict(
        self, images: Iterable[ImageLike], threshold: float | None = None, top: int | None = None,
        batch_size: int | None = None, *, errors: Literal["skip"],
    ) -> list[dict[str, float] | None]: ...  # fmt: skip
    def predict(
        self, images: ImageLike | Iterable[ImageLike], threshold: float | None = None, top: int | None = None,
        batch_size: int | None = None, errors: Literal["raise", "skip"] = "raise",
    ) -> dict[str, float] | list[dict[str, float]] | list[dict[str, float] | None] | None:  # fmt: skip
        """The labels of one image with their probabilities, the most probable first; for many images a list of these.

        An image is a path, the bytes of a file, a file that is open for reading bytes, a Pillow image, a numpy array
        (H x W x 3 or H x W) or a torch tensor (3 x H x W or H x W x 3), with bytes or floats from 0 to 1. Many images
        are any iterable of them, or an array of 4 dimensions.

        Labels are the classes that reach the threshold of their class, or `threshold`. With `top` they are the `top`
        most probable classes, and without `threshold` those below their threshold too. An image that cannot be used
        raises a `UserError`. With `errors="skip"` its labels are None, and a warning has the reason of the first one.
        For many files `score_files` is faster: it decodes them in worker processes.
        """
        check_choice(threshold, top)
        if errors not in ("raise", "skip"):
            raise unknown("errors", errors, ("raise", "skip"))
        size, single = self._batch(batch_size), is_single(images)
        if not single and not isinstance(images, Iterable):
            raise UserError(f"cannot read images from a {type(images).__name__}: give a path, an array or a list")
        found: list[dict[str, float] | None] = []
        skipped: list[str] = []
        for batch in batches_of([images] if single else images, size):  # type: ignore[arg-type]
            pixels, good, bad = load_batch(Images(batch), np.arange(len(batch)), self.info.image_size, "none", None)
            for row, reason in bad:
                name = batch[row] if isinstance(batch[row], str | Path) else f"image {len(found) + row}"
                skipped.append(f"{printable(name)}: {printable(reason)}")
                if errors == "raise":
                    raise UserError(f"cannot use {skipped[0]}")
            labels: list[dict[str, float] | None] = [None] * len(batch)
            scores = self.probabilities(self.logits(torch.from_numpy(pixels))).numpy()
            for position, row in zip(good, scores, strict=True):
                labels[position] = self.labels(row, threshold, top)
            found += labels
        if skipped:
            share = f"{len(skipped):,} of {counted(len(found), 'images')}"
            warnings.warn(f"cannot use {share}, whose labels are None: {skipped[0]}", stacklevel=2)
        return found[0] if single else found

    def labels(
        self, probabilities: np.ndarray, threshold: float | None = None, top: int | None = None
    ) -> dict[str, float]:
        """The labels of one image from the probabilities of all classes, chosen as in `predict`."""
        columns = self.label_columns(probabilities, threshold, top)
        return {self.classes[column]: float(probabilities[column]) for column in columns}

    def label_columns(
        self, probabilities: np.ndarray, threshold: float | None = None, top: int | None = None
    ) -> list[int]:
        """The columns of the classes in `labels`, in the same order."""
        limits = self.thresholds if threshold is None else threshold
        order = np.argsort(-probabilities, kind="stable")
        if top is None or threshold is not None:
            order = order[(probabilities >= limits)[order]]
        return order[:top].tolist()

    def score_files(
        self, paths: Iterable[str | Path], batch_size: int | None = None, workers: int | None = None
    ) -> Iterator[tuple[str, np.ndarray | str]]:
        """For each file, in order, its path and the probabilities of all classes, or the reason why it is unusable.

        Paths are taken a few batches ahead, so there can be any number of them. `workers` processes decode the files;
        with 0 this process does.
        """
        size, waiting = self._batch(batch_size), deque[list[str]]()

        def jobs() -> Iterator[Job]:
            for batch in batches_of(map(str, paths), size):
                waiting.append(batch)
                yield Job("", np.arange(len(batch)), source=Images(batch))

        for loaded, logits in self._score({}, jobs(), size, workers):
            batch = waiting.popleft()
            scores = zip(loaded.good.tolist(), self.probabilities(logits).numpy(), strict=True)
            found: dict[int, np.ndarray | str] = {**dict(loaded.bad), **dict(scores)}
            yield from ((path, found[row]) for row, path in enumerate(batch))

    def score_source(
        self,
        source: ImageSource,
        rows: np.ndarray,
        progress: Callable[[int, int], None] | None = None,
        batch_size: int | None = None,
        workers: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray, list[tuple[int, str]]]:
        """The logits (N x classes) of the readable images among `rows`, their positions in `rows`, and (row, reason).

        `progress` is called with the number of images so far and the number of all.
        """
        size, done = self._batch(batch_size), 0
        starts = range(0, len(rows), size)
        jobs = (Job("images", rows[start : start + size]) for start in starts)
        logits = [np.zeros((0, len(self.classes)), np.float32)]
        good, bad = [np.zeros(0, np.int64)], []
        for loaded, found in self._score({"images": source}, jobs, size, workers):
            logits.append(found.numpy())
            good.append(done + loaded.good)
            bad += loaded.bad
            done = min(done + size, len(rows))
            if progress is not None:
                progress(done, len(rows))
        return np.concatenate(logits), np.concatenate(good), bad

    def _score(
        self, sources: Mapping[str, ImageSource], jobs: Iterable[Job], size: int, workers: int | None
    ) -> Iterator[tuple[Loaded, Tensor]]:
        """Each job with its logits. The logits of a batch arrive while the next one is computed."""
        workers = default_workers(self.device) if workers is None else workers
        if not isinstance(workers, Integral) or workers < 0:
            raise UserError(f"workers must be at least 0, not {shorten(workers)}")
        loader = Loader(dict(sources), self.info.image_size, workers, size)
        ahead = deque[tuple[Loaded, HostCopy]]()
        try:
            for loaded in loader.batches(jobs):
                ahead.append((loaded, self._start(loaded.pixels, size)))
                if len(ahead) > (self.device.type == "cuda"):
                    yield ahead[0][0], _arrived(ahead.popleft()[1])
            while ahead:
                yield ahead[0][0], _arrived(ahead.popleft()[1])
        except WorkerDied:
            reason = "a process that decodes images was killed: if memory was short, use fewer workers"
            raise UserError(reason) from None
        finally:
            loader.close()

    def _batch(self, batch_size: int | None) -> int:
        if batch_size is None:
            return self.batch_size
        if not isinstance(batch_size, Integral) or not 1 <= batch_size <= _MAX_BATCH:
            raise UserError(f"batch_size must be 1 to {_MAX_BATCH:,}, not {shorten(batch_size)}")
        return int(batch_size)

    def relations(self, name: str, top: int = 10) -> dict[str, float]:
        """The classes that most often occur together with a class: P(other | class), the most probable first."""
        if name not in self.classes:
            raise unknown("class", name, self.classes)
        if self.info.relations is None:
            raise UserError(f"method {self.info.method} counts no relations of labels: use agcn or weighted-ridge")
        pairs = self.info.relations[self.classes.index(name)]
        return {self.classes[other]: value for other, value in pairs[:top]}


def _arrived(logits: HostCopy) -> Tensor:
    """A copy on the CPU, in memory that is not pinned."""
    return logits.wait().to("cpu", copy=True)


def check_choice(threshold: Any, top: Any) -> None:
    """Raise a `UserError` if a threshold or a number of labels is not possible."""
    if threshold is not None and not (isinstance(threshold, Real) and 0 <= float(threshold) <= 1):
        raise UserError(f"threshold must be 0 to 1, not {shorten(threshold)}")
    if top is not None and not (isinstance(top, Integral) and int(top) >= 1):
        raise UserError(f"top must be at least 1, not {shorten(top)}")


def _restore(folder: Path, info: ModelInfo, tensors: Mapping[str, Tensor]) -> InferenceNetwork:
    """The network of a model folder. The random state does not change, although a new backbone is random."""
    with torch.random.fork_rng(devices=[]):
        if _backbone_fits(folder, info, tensors):
            backbone = _build_backbone(folder, info)
        else:
            with _at_most(sum(map(Tensor.numel, tensors.values())), folder):
                backbone = _build_backbone(folder, info)
    try:
        network = InferenceNetwork.restore(backbone, info.network, tensors)
        shape = _output_shape(network, info.image_size)
        if shape is not None and shape != (1, len(info.classes)):
            raise ValueError(f"it has {shape[-1]} outputs, not {len(info.classes)}")
    except (KeyError, RuntimeError, ValueError, TypeError, IndexError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise _misfit(folder, (lines[1:] or lines or [type(error).__name__])[0]) from None
    return network


def _misfit(folder: Path, reason: str) -> UserError:
    reason = shorten(printable(reason))
    return UserError(f"the tensors in {folder} do not fit its {MODEL_INFO}: {reason}; copy the model again")


def _backbone_fits(folder: Path, info: ModelInfo, tensors: Mapping[str, Tensor]) -> bool:
    """Compare the backbone with the tensors before it takes memory: a small folder can name several huge networks.

    Raises a `UserError` if they differ. False if the backbone cannot be built on the meta device.
    """
    try:
        with torch.device("meta"):
            expected = _build_backbone(folder, info).state_dict()
    except Exception:  # some networks compute with tensors while they are built; any other error comes again
        return False
    for name, tensor in expected.items():
        found = tensors.get(f"features.backbone.{name}")
        if found is None or found.shape != tensor.shape:
            what = "is missing" if found is None else f"has the shape {list(found.shape)}, not {list(tensor.shape)}"
            raise _misfit(folder, f"{name} {what}")
    return True


@contextlib.contextmanager
def _at_most(parameters: int, folder: Path) -> Iterator[None]:
    """Raise a `UserError` as soon as new modules have more parameters than these and those of a head."""
    count = 0

    def add(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal count
        count += 0 if parameter is None else parameter.numel()
        if count > parameters + _MAX_HEAD:
            raise _misfit(folder, f"the backbone has more than the {parameters:,} values of the tensors")

    hook = register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def _output_shape(network: InferenceNetwork, size: int) -> tuple[int, ...] | None:
    """The shape of the output for one image, without computing it. None if an operation does not state its shape."""
    named = itertools.chain(network.named_parameters(), network.named_buffers())
    on_meta = {name: tensor.to("meta") for name, tensor in named}
    images = torch.empty(1, 3, size, size, device="meta")
    try:
        # with tie_weights, a module that is used twice would keep its tensors on the meta device
        return tuple(functional_call(network, on_meta, (images,), tie_weights=False).shape)
    except NotImplementedError:
        return None


def _build_backbone(folder: Path, info: ModelInfo) -> backbones.Backbone:
    """The backbone of a model with random weights, and the normalization of the model."""
    names = [info.backbone] if info.backbone in backbones.BACKBONES else info.backbone.split("+")
    if len(names) != len(info.normalize):
        raise UserError(f"{folder / MODEL_INFO} is damaged (normalize): copy the model again")
    parts = []
    for name, values in zip(names, info.normalize, strict=True):
        try:
            part = backbones.build(name, info.pool, "none")
        except UserError as error:
            plugins = info.training.get("plugins") or [plugin for plugin in [name.rpartition(":")[0]] if plugin]
            if name in backbones.BACKBONES or not isinstance(plugins, list) or not plugins:
                raise UserError(f"{folder}: {error}") from None
            listed = printable(" ".join(f"--plugin {shorten(plugin)}" for plugin in plugins[:5]))
            raise UserError(
                f"{folder} needs a plug-in for its backbone {printable(shorten(name))}: give {listed}, which runs its "
                "code; in Python, call lifelabel.load_plugin first"
            ) from None
        part.normalize = Normalize(values["mean"], values["std"])
        parts.append(part)
    return backbones.PairedBackbone(parts) if len(parts) > 1 else parts[0]
