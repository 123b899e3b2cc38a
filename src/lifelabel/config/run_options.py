"""The options that every run has, and the options of streams that have a flag.

Torch is not imported here: `lifelabel --help` is fast.
"""

from __future__ import annotations

from dataclasses import dataclass

from lifelabel.images.transforms import AUGMENTATIONS
from lifelabel.options import declared, option
from lifelabel.streams import STREAMS
from lifelabel.streams.order import IMAGE_ORDERS

VARIED = {"method": "--methods", "seed": "--seeds", "task_order": "--orders", "class_order": "--orders"}
"""The options that differ between the runs of a comparison, with the flags that set them."""
SET_BY_TUNE = ("method", "seed", "first_tasks", "hold_out", "proxy", "proxy_images")
"""The options that `lifelabel tune` sets in every trial."""


@dataclass(frozen=True)
class RunOptions:
    """The options of a run that do not depend on its stream and method."""

    stream: str = option(
        "scenes",
        "what to learn from: a name of `lifelabel list streams`, or a .yaml, .csv, .tsv, .parquet or .zip file",
        label=False,
        registered=True,
        flag="Data",
    )
    method: str = option(
        "agcn",
        "how to learn: a name of `lifelabel list methods`, or FILE.py:NAME or module:NAME; with fidelity tuned and "
        "pretrained weights, on photographs other than the paper's streams, the default is weighted-ridge",
        registered=True,
        flag="Training",
    )
    fidelity: str = option(
        "tuned",
        "the set of options: those that measured best, the paper's equations, the authors' code, or plain training",
        choices=("tuned", "paper", "release", "plain"),
        flag="Training",
    )
    seed: int = option(
        0, "seed of image order, augmentation and initial weights", low=0, high=2**31 - 1, label=False, flag="Training"
    )
    batch_size: int = option(
        8, "images per step, of all processes together", low=1, high=1_000_000, equal=True, flag="Training"
    )
    epochs: int = option(
        1,
        "passes over the images of each task; more than 1 for overlapping protocols only, whose tasks are offline",
        low=1,
        high=10_000,
        flag="Training",
    )
    lr: float = option(3e-4, "learning rate of the head (linear or graph)", above=0, resume=True, flag="Training")
    backbone_lr: float = option(
        1e-3, "learning rate of the backbone in the first task", above=0, resume=True, flag="Training"
    )
    later_backbone_lr: float = option(
        6e-4, "learning rate of the backbone in later tasks", low=0, resume=True, flag="Training"
    )
    batch_norm: str = option(
        "first-task",
        "batch-norm statistics: running, frozen, or running in the first task and frozen after it",
        choices=("running", "frozen", "first-task"),
        flag="Training",
    )
    adam_eps: float = option(1e-8, "epsilon of Adam", above=0, resume=True, flag="Training")
    augment: str = option(
        "flip", "augmentation of training images", choices=tuple(AUGMENTATIONS), equal=True, flag="Data"
    )
    reduction: str = option(
        "mean", "losses as sums (paper) or means (authors' code) over classes", choices=("mean", "sum"), flag="Training"
    )
    backbone: str = option(
        "tiny",
        "the image network: a name of `lifelabel list backbones`, or several joined by +",
        equal=True,
        registered=True,
        flag="Backbone",
    )
    weights: str = option(
        "none",
        "initial weights of the backbone: none, imagenet, or a .safetensors or .pth file; for several backbones, files "
        "joined by +",
        path=("none", "imagenet"),
        equal=True,
        flag="Backbone",
    )
    allow_seen_weights: bool = option(
        False, "accept weights that were trained on the stream's own classes", flag="Backbone"
    )
    image_size: int | None = option(
        None,
        "side of the images in pixels; none: as the embedded images are drawn, 224 for photographs, or as the preset "
        "of the method",
        low=16,
        high=2048,
        equal=True,
        flag="Data",
    )
    normalize: str = option(
        "backbone",
        "pixel mean and standard deviation: those of the backbone's weights, or those of the authors' code",
        choices=("backbone", "authors"),
        equal=True,
        flag="Backbone",
    )
    workers: int | None = option(
        None,
        "processes that decode images, at most 16 or 8 per core; none: the number of cores on a GPU, 0 on the CPU",
        low=0,
        high=256,
        free=True,
        flag="Data",
    )
    image_order: str = option(
        "random",
        "order of the training images of a task: random, or shard by shard with a limited shuffle, for tar shards",
        choices=IMAGE_ORDERS,
        flag="Data",
    )
    strict: bool = option(
        False, "stop at the first image that cannot be read, instead of skipping it", free=True, flag="Data"
    )
    max_skipped: float = option(
        0.1,
        "largest share of the training images of a task, or of the test images, that is skipped; more stop the run",
        low=0,
        high=1,
        free=True,
        flag="Data",
    )
    pool: str = option(
        "max", "global pooling of the last feature map", choices=("max", "avg"), equal=True, flag="Backbone"
    )
    words: str | None = option(
        None, "a GloVe text file for the label words; none: a fixed vector per word", path=True, flag="Label words"
    )
    word_dim: int = option(300, "length of a fixed word vector", low=1, high=4096, flag="Label words")
    word_norm: float | None = option(
        1.7, "norm that every label embedding is scaled to; none: not scaled", above=0, flag="Label words"
    )
    device: str = option(
        "auto", "device to train on: auto (CUDA, else the CPU), cpu, cuda, cuda:N or mps", free=True, flag="Machine"
    )
    precision: str = option(
        "auto",
        "precision of the backbone and the label graph; auto: bfloat16 on a GPU that supports it, else float32",
        choices=("auto", "fp32", "bf16"),
        equal=True,
        flag="Machine",
    )
    task_order: int = option(
        0,
        "order of the tasks: 0 is that of the stream, k the k-th random one",
        low=0,
        high=1000,
        label=False,
        flag="Data",
    )
    class_order: int = option(
        0,
        "order of the classes, in tasks of the same sizes: 0 is that of the stream, k the k-th random one; only for "
        "overlapping protocols",
        low=0,
        high=1000,
        label=False,
        flag="Data",
    )
    compile: str = option(
        "auto",
        "on a GPU: replay steps as CUDA graphs and compile the backbone; auto: compile in long runs only; off: neither",
        choices=("auto", "on", "off"),
        free=True,
        flag="Machine",
    )
    first_tasks: int | None = option(None, "train and score on the first tasks only; none: all", low=1, flag="Data")
    hold_out: float = option(
        0.0,
        "share of the training images that is scored in place of the test images, and not learned",
        low=0,
        high=0.9,
        flag="Data",
    )
    proxy: bool = option(
        False,
        "train on the proxy stream, which has as many tasks and no class of the stream; needs hold_out",
        flag="Data",
    )
    proxy_images: int | None = option(
        None, "largest number of images of the proxy stream; none: all", low=1, flag="Data"
    )
    save_scores: bool = option(
        False, "save the final scores and labels of the test images in scores.npz", label=False, flag="Output"
    )
    keep_tasks: bool = option(
        False, "keep a model folder after every task, not only after the last one", free=True, flag="Output"
    )
    pictures: int = option(
        24,
        "test images of which the run folder keeps small pictures for the report; 0: none",
        low=0,
        high=256,
        free=True,
        flag="Output",
    )
    log: str = option(
        "none",
        "also write losses and metrics to the folder tensorboard of the run, as event files",
        choices=("none", "tensorboard"),
        free=True,
        flag="Output",
    )
    checkpoint_seconds: float = option(
        30.0, "seconds between checkpoints inside a task; 0: after every step", low=0, free=True, flag="Output"
    )
    plugins: tuple[str, ...] = option(
        (), "plug-ins that are loaded: files or modules; a resumed run needs them", free=True
    )


def stream_flags() -> dict[str, type]:
    """The options of streams that declare a flag, with the dataclass that declares each.

    Only streams that are registered now are included. Installed plug-ins are not imported for this: `lifelabel --help`
    must work if one of them is broken.

    >>> sorted(stream_flags())
    ['alias', 'merge_case', 'root', 'tasks']
    """
    found: dict[str, type] = {}
    for source in STREAMS.registered().values():
        for name in declared(source.Options, "flag"):
            found.setdefault(name, source.Options)
    return found
