"""The folder of a model: model.safetensors, training-images.bin, model.json and README.md.

A folder is untrusted: it may come from anywhere. Reading it runs no code in it, and sizes are checked before memory is
used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from lifelabel.errors import UserError
from lifelabel.images.hashes import PAIR_BYTES, TrainedImages
from lifelabel.model.card import model_card
from lifelabel.model.info import MAX_TRAINED, ModelInfo, is_int, require
from lifelabel.nn.inference import InferenceNetwork
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder
from lifelabel.utils.files import atomic_write, below, read_limited, sha256, write_text, writing
from lifelabel.utils.text import printable, shorten

_KIND, _FORMAT = "lifelabel model", 1
_ABOUT = ("kind", "format", "sha256", "bytes")
"""The first keys of model.json: its kind and format, and the digest and size of model.safetensors."""
_OWN = "values_sha256"
"""The last key of model.json: the digest of all other values in it."""
_TENSORS, _INFO, _CARD, _IMAGES = names.MODEL_TENSORS, names.MODEL_INFO, names.MODEL_CARD, names.TRAINED_IMAGES
_MAX_JSON, _MAX_TENSOR_BYTES, _MAX_TENSORS = 100 << 20, 16 << 30, 100_000
_DTYPES = ("F32", "I64")
"""Weights, and the step counters of batch norm."""


def write_model(
    folder: Path, network: InferenceNetwork, info: ModelInfo, trained: TrainedImages | None = None
) -> dict[str, str]:
    """Write the folder of a model. model.json is written last: a folder without it is not a model.

    Returns the SHA-256 of each file by its name.
    """
    folder = Path(folder)
    images, about_images, digests = b"", None, {}
    if trained is not None:
        images = trained.to_bytes()
        digests[_IMAGES] = hashlib.sha256(images).hexdigest()
        about_images = {"images": len(images) // PAIR_BYTES, "side": trained.side, "sha256": digests[_IMAGES]}
    info = dataclasses.replace(info, trained=about_images)
    tensors = {name: _on_cpu(tensor) for name, tensor in network.state_dict().items()}
    data_set = info.stream.get("dataset") or info.stream.get("name")
    trained_on = " + ".join(str(name) for name in (info.provenance.get("trained_on"), data_set) if name)
    data = save(tensors, {"trained_on": trained_on})  # one key: safetensors writes several in random order
    about = (_KIND, _FORMAT, hashlib.sha256(data).hexdigest(), len(data))
    texts = _texts(dict(zip(_ABOUT, about, strict=True)), info)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / _TENSORS) as file:
        file.write(data)
    if trained is not None:
        with atomic_write(folder / _IMAGES) as file:
            file.write(images)
    for name, text in texts.items():
        write_text(folder / name, text)
    return {**digests, _TENSORS: about[2], **_digests(texts)}


def _digests(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _texts(about: dict[str, Any], info: ModelInfo) -> dict[str, str]:
    """The content of README.md and of model.json, in the order in which they are written."""
    values = _without_nan({**about, **info.to_dict()})
    values[_OWN] = _values_sha256(values)
    return {_CARD: model_card(info), _INFO: json.dumps(values, indent=1, allow_nan=False) + "\n"}


def _values_sha256(values: Mapping[str, Any]) -> str:
    """The digest that model.json has of its other values: the SHA-256 of them as JSON with sorted keys."""
    text = json.dumps({name: value for name, value in values.items() if name != _OWN}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def digests_before_calibration(folder: Path) -> dict[str, str]:
    """The SHA-256 of README.md and model.json before `lifelabel calibrate` changed them, by name.

    Empty if the model is not calibrated, or if its files differ from those that `calibrate` writes.
    """
    values, info = _read_info(folder)
    about = {name: values.get(name) for name in _ABOUT}
    if info.calibration is None and info.thresholds is None:
        return {}
    if any(read_limited(below(folder, name), _MAX_JSON) != text.encode() for name, text in _texts(about, info).items()):
        return {}
    before = dataclasses.replace(info, calibration=None, thresholds=None)
    return _digests(_texts(about, before))


def _on_cpu(tensor: Tensor) -> Tensor:
    dtype = torch.float32 if tensor.is_floating_point() else torch.int64
    return tensor.detach().to("cpu", dtype, copy=True, memory_format=torch.contiguous_format)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def find_model(path: str | Path) -> Path:
    """The model folder at `path`: a model folder, or a run folder that has one."""
    path = Path(path)
    for folder in (path, below(path, names.MODEL)):
        if below(folder, _INFO).exists():
            return folder
    if RunFolder(path).is_run:
        ended = False
        with contextlib.suppress(UserError):  # metrics.json is damaged
            ended = RunFolder(path).is_finished
        if ended:
            raise UserError(
                f"{path} has no model: it was trained by an earlier lifelabel, or its method has no network; train it "
                "again"
            )
        raise UserError(f"{path} is not finished: continue it with lifelabel train --resume {path}")
    if (path / _TENSORS).exists():
        raise UserError(f"{path} is not a model of lifelabel: it has {_TENSORS}, but no {_INFO}")
    what = f"has no model: there is no {names.MODEL_INFO} in it" if path.is_dir() else "is not a folder"
    raise UserError(f"{path} {what}; give the folder of a finished run, or of a model")


def read_model(path: str | Path) -> tuple[ModelInfo, dict[str, Tensor]]:
    """The content of model.json and the tensors of a model folder, or of the one in a run folder."""
    folder = find_model(path)
    values, info = _read_info(folder)
    tensors, size, digest = below(folder, _TENSORS), values["bytes"], values["sha256"]
    try:
        found = tensors.stat().st_size if tensors.is_file() else 0
        if found != size:
            raise UserError(f"{tensors} is damaged ({found:,} bytes, not {size:,}): copy the model again")
        if sha256(tensors) != digest:
            raise UserError(f"{tensors} is damaged, or belongs to another {_INFO}: copy the model again")
        return info, _read_tensors(tensors)
    except OSError as error:
        raise UserError(f"cannot read {tensors}: {error.strerror or error}") from None
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{tensors} is damaged ({shorten(printable(error))}): copy the model again") from None


def read_info(folder: Path) -> ModelInfo:
    """The content of model.json in a model folder, without the tensors."""
    return _read_info(folder)[1]


def _read_info(folder: Path) -> tuple[dict[str, Any], ModelInfo]:
    """All values of model.json, and those that describe the model."""
    values = _read_json(below(folder, _INFO))
    try:
        info = ModelInfo.from_dict(values)
        size, digest = values.get("bytes"), values.get("sha256")
        require(is_int(size, 1, _MAX_TENSOR_BYTES) and isinstance(digest, str), "size or sha256 of the tensors")
    except (ValueError, TypeError) as error:
        raise UserError(f"{folder / _INFO} is damaged ({printable(error)}): copy the model again") from None
    return values, info


def read_trained(path: str | Path, info: ModelInfo) -> TrainedImages | None:
    """The images that a model was trained on, for a model folder or a run folder. None if the model does not say."""
    if info.trained is None:
        return None
    file = below(find_model(path), _IMAGES)
    data = read_limited(file, MAX_TRAINED * PAIR_BYTES) if file.exists() else b""
    digest = hashlib.sha256(data).hexdigest()
    if len(data) != info.trained["images"] * PAIR_BYTES or digest != info.trained["sha256"]:
        raise UserError(f"{file} is damaged or missing: copy the whole model folder again")
    return TrainedImages.from_bytes(data, info.trained["side"])


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_limited(path, _MAX_JSON), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged: it is not valid JSON; copy the model again") from None
    if not isinstance(values, dict) or values.get("kind") != _KIND:
        raise UserError(f"{path} is not a model of lifelabel: give the folder of a finished run, or of a model")
    number = values.get("format")
    if not isinstance(number, int) or number < 1:
        raise UserError(f"{path} is damaged: its format is not a number; copy the model again")
    if number > _FORMAT:
        raise UserError(f"{path} was written by a newer lifelabel (format {number}): update lifelabel")
    with contextlib.suppress(RecursionError):
        if values.get(_OWN) == _values_sha256(values):
            return values
    raise UserError(f"{path} is damaged or was edited: copy the model again")


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    with safe_open(path, "pt") as file:
        keys = list(file.keys())
        require(len(keys) <= _MAX_TENSORS, "too many tensors")
        for name in keys:
            require(file.get_slice(name).get_dtype() in _DTYPES, f"the type of {shorten(name)}")
        tensors = {name: file.get_tensor(name) for name in keys}
    for name, tensor in tensors.items():
        require(bool(tensor.isfinite().all()), f"{shorten(name)} is not finite")
    return tensors
