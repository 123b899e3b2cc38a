"""What a run is made of, from its configuration: label server, method and image loader."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import shlex
import signal
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lifelabel.config.config import Config
from lifelabel.engine.callback import Callback
from lifelabel.engine.checks import check_images, check_metrics, check_passes, check_step_memory
from lifelabel.engine.environment import reset_peak_memory
from lifelabel.engine.label_server import LabelServer, StreamInfo
from lifelabel.engine.progress import Progress, get_random_state
from lifelabel.engine.tensorboard import check_tensorboard
from lifelabel.errors import Interrupted, Stopped, UserError
from lifelabel.images.hashes import TrainedImages
from lifelabel.images.loader import DEFAULT_IMAGE_SIZE, SCORING_BYTES, Loader, default_workers
from lifelabel.images.transforms import min_side_for
from lifelabel.methods import METHODS, Method
from lifelabel.nn import backbones, provenance
from lifelabel.nn.cuda_graphs import should_compile
from lifelabel.nn.device import resolve_device, resolve_precision
from lifelabel.nn.graph import embed
from lifelabel.nn.method_setting import Setting
from lifelabel.nn.normalize import AUTHORS_MEAN, AUTHORS_STD, Normalize
from lifelabel.parallel.group import ALONE, Group
from lifelabel.parallel.torchrun import local_rank, processes_here, torchrun_command
from lifelabel.runs.folder import RunFolder
from lifelabel.streams import Task
from lifelabel.streams.order import order_places
from lifelabel.streams.subsets import Part
from lifelabel.utils.memory import keep_freed_memory


class Stopping:
    """Whether the user has asked a run to stop. Several processes must agree on it: then they stop at the same step."""

    def __init__(self, config: Config, folder: RunFolder, callback: Callback, group: Group):
        self.callback, self.group = callback, group
        self.requested = False
        plugins = [word for plugin in config.plugins for word in ("--plugin", plugin)]
        self.resume_command = shlex.join([*torchrun_command(), "train", "--resume", str(folder.path), *plugins])

    def request(self) -> None:
        """The handler of the signals. A second Ctrl-C is not caught."""
        if not self.requested:
            self.callback.stopping()
        self.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    @property
    def now(self) -> bool:
        """Whether this process may stop without asking others."""
        return self.requested and self.group.size == 1

    def check(self, agreed: bool = False) -> None:
        """Raise `Stopped` if a stop was requested. Several processes must have agreed on it."""
        if agreed or self.now:
            raise Stopped(f"stopped; resume with: {self.resume_command}")

    def agree(self) -> None:
        """Raise `Stopped` in all processes if one of them was asked to stop."""
        self.check(any(self.group.collect(self.requested)))


class Run:
    """The parts of a run, and its position. It owns processes (label server, image workers): use `with`."""

    def __init__(self, config: Config, folder: RunFolder, callback: Callback, group: Group = ALONE):
        self.config, self.folder, self.callback, self.group = config, folder, callback, group
        keep_freed_memory()
        self.device = _device(config, group)
        self.gpus = [self.device] if self.device.type == "cuda" else []
        reset_peak_memory(self.device)
        self.progress = Progress()
        self.stopping = Stopping(config, folder, callback, group)
        self.processes = contextlib.ExitStack()
        try:
            self._make_parts()
        except BaseException:
            self.processes.close()
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.processes.close()
        if isinstance(error, Interrupted) and self.folder.is_run:
            raise error.resumable(self.stopping.resume_command) from None

    def _make_parts(self) -> None:
        c, group, note, on_wait = self.config, self.group, self.callback.note, self.stopping.check
        if c.log == "tensorboard":
            check_tensorboard()
        joint = self.joint = learns_jointly(c)
        self.label_server = start_label_server(c, on_wait, group)
        self.processes.callback(self.label_server.close)
        info = self.info = self.label_server.info
        self.tasks: tuple[Task, ...] = (Task(0, info.classes, 0),) if joint else info.tasks
        self.images = c.epochs * (info.joint_size if joint else sum(info.sizes))
        check_passes(info, c)
        check_images(info, c, self.folder, note)
        check_metrics()
        if joint and not info.complete:
            note(
                f"{info.name} has the labels of a training image for its own task only: {c.method} learns from those, "
                "and is not an upper bound"
            )
        with torch.random.fork_rng(self.gpus):
            torch.manual_seed(c.seed)
            self.method, self.made_from = _make_method(c, info, self.device, self.images, group, note)
            self.random_state = get_random_state(self.gpus)
        size = self.image_size = c.image_size or info.image_size or DEFAULT_IMAGE_SIZE
        self.trained = TrainedImages.of_names(info.left_out, min_side_for(size, c.augment))
        workers = default_workers(self.device) if c.workers is None else c.workers
        sources = {"train": info.train, "test": info.test, **({} if info.val is None else {"val": info.val})}
        batch_size, scoring_bytes = math.ceil(c.batch_size / group.size), SCORING_BYTES[self.device.type]
        self.loader = Loader(sources, size, workers, batch_size, scoring_bytes=scoring_bytes)
        self.loader.on_wait = on_wait
        self.processes.callback(self.loader.close)
        check_step_memory(self.method, c, size, group.size, note)

    @property
    def resolved(self) -> dict[str, str]:
        """The device and the precision of the run, which `auto` leaves to the machine."""
        return {"device": self.device.type, "precision": self.method.setting.precision}


def _device(config: Config, group: Group) -> torch.device:
    """The device of a run in this process: of several processes, each has another GPU."""
    device = resolve_device(config.device, METHODS[config.method].float64)
    if device.type != "cuda" or group.size == 1:
        return device
    if device.index is not None and processes_here() > 1:
        raise UserError(f"--device {config.device} is one GPU for all processes of torchrun: give --device cuda")
    device = torch.device("cuda", local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def learns_jointly(config: Config) -> bool:
    """Whether all tasks are learned as one.

    An upper bound that is extended learns only the new images: the old ones are not stored.
    """
    return METHODS[config.method].joint and not getattr(config.stream_options, "learned", ())


def start_label_server(
    config: Config, on_wait: Callable[[], None] = lambda: None, group: Group = ALONE
) -> LabelServer:  # fmt: skip
    """The label server of a run. The caller closes it."""
    options = dataclasses.asdict(config.stream_options)
    return LabelServer(config.stream, options, learns_jointly(config), Part.from_options(config), on_wait, group)


def _make_method(
    config: Config, info: StreamInfo, device: torch.device, images: int, group: Group, note: Callable[[str], None]
) -> tuple[Method, dict[str, str | None]]:
    """The method of a run, and what it was made from: SHA-256 of the stream, its files, word vectors and weights.

    `images` is the number of images that the run learns, in all passes.
    """
    names: list[str] = list(info.classes)
    vectors, missing = embed(names, config.words, config.word_dim, config.word_norm)
    if missing:
        note(f"{len(missing)} label words are not in {config.words} and get a fixed vector: {', '.join(missing)}")
    table = torch.from_numpy(vectors).to(device)
    row = {name: i for i, name in enumerate(names)}
    setting = make_setting(
        config, lambda labels: table[[row[label] for label in labels]], device, images, info.sizes[0], len(names), group
    )
    weights = setting.backbone.provenance
    made_from = {
        "stream": info.fingerprint, "files": _image_files(config, info),
        "words": hashlib.sha256(vectors.tobytes()).hexdigest(), "weights": weights.sha256,
    }  # fmt: skip
    seen = provenance.check(weights, names, info.dataset, config.allow_seen_weights)
    if seen:
        note(seen)
    return METHODS[config.method](setting, config.method_options), made_from


def _image_files(config: Config, info: StreamInfo) -> str:
    """SHA-256 of the mask of images that have a file. If their order depends on their places, of these too."""
    places = order_places(info.train, config.image_order)
    return hashlib.sha256(info.files.encode() + places).hexdigest() if places else info.files


def make_setting(
    config: Config,
    embed: Callable[[Sequence[str]], Tensor],
    device: torch.device,
    images: int = 0,
    first_task_images: int = 0,
    classes: int = 0,
    group: Group = ALONE,
) -> Setting:
    """The setting of a run with a new backbone. Its other fields are the options of the same name."""
    backbone = backbones.build(config.backbone, config.pool, config.weights)
    if config.normalize == "authors":
        if len(backbone.parts) > 1:
            raise UserError("normalize=authors is for one backbone: leave it out, or give one --backbone")
        backbone.normalize = Normalize(AUTHORS_MEAN, AUTHORS_STD)
    # the collective operations of several processes are not recorded or compiled
    compile_choice = config.compile if group.size == 1 else "off"
    given: dict[str, Any] = {
        "group": group,
        "backbone": backbone,
        "embed": embed,
        "device": device,
        "precision": resolve_precision(config.precision, device),
        "record": compile_choice != "off" and device.type == "cuda",
        "compile": should_compile(compile_choice, device, math.ceil(images / config.batch_size)),
        "images": images,
        "first_task_images": first_task_images,
        "classes": classes,
    }
    names = [field.name for field in dataclasses.fields(Setting) if field.name not in given]
    return Setting(**given, **{name: getattr(config, name) for name in names})
