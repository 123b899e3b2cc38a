"""The `scenes` stream: procedural images of everyday things, with co-occurrence probabilities that are known exactly.

docs/streams/scenes.md describes the label model and its true matrix. The pixels of an image depend only on the seed,
the split and the row number. The proxy stream has the classes that the stream does not use, on other images.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from lifelabel.errors import UserError
from lifelabel.images.source import Names
from lifelabel.options import option
from lifelabel.streams.blurry import BLURRY_HELP
from lifelabel.streams.labels import Labels
from lifelabel.streams.scenes_draw import THINGS, Box, Pen, Thing, hsv, near, times
from lifelabel.streams.stream import (
    LABELS,
    LABELS_HELP,
    Split,
    Stream,
    Task,
    classes_to_tasks,
    equal_sizes,
    equal_tasks,
    proxy_sizes,
)

# Neighbours belong to different scenes, so that most strong relations are between classes of different tasks.
_CLASSES = (
    *("sky", "boat", "house", "cup"),
    *("sea", "tree", "car", "table"),
    *("sun", "road", "lamp", "flower"),
    *("cloud", "fish", "chair", "moon"),
    *("bird", "fence", "umbrella", "mountain"),
    *("window", "star", "kite", "tent"),
    *("book", "train", "balloon", "flag"),
    *("clock", "mushroom"),
)

_SCENES: dict[str, tuple[float, str, dict[str, float]]] = {
    "beach": (0.12, "sand", {
        "sky": 0.60, "sea": 0.90, "sun": 0.65, "umbrella": 0.60, "boat": 0.25, "bird": 0.25, "cloud": 0.25,
        "chair": 0.20, "kite": 0.40, "tent": 0.15, "flag": 0.30,
    }),
    "harbour": (0.12, "cool", {
        "sea": 0.90, "boat": 0.90, "sky": 0.55, "bird": 0.55, "cloud": 0.40, "house": 0.20, "fish": 0.25,
        "lamp": 0.15, "flag": 0.40, "clock": 0.15,
    }),
    "reef": (0.09, "cool", {"fish": 0.95, "sea": 0.70, "boat": 0.35, "star": 0.15, "sun": 0.20}),
    "countryside": (0.12, "green", {
        "tree": 0.80, "fence": 0.60, "sky": 0.60, "cloud": 0.50, "house": 0.45, "flower": 0.25, "road": 0.30,
        "sun": 0.30, "bird": 0.20, "balloon": 0.35, "mushroom": 0.25, "kite": 0.20, "train": 0.20,
    }),
    "street": (0.14, "grey", {
        "road": 0.90, "car": 0.85, "house": 0.60, "lamp": 0.40, "tree": 0.25, "umbrella": 0.20, "sky": 0.15,
        "window": 0.40, "clock": 0.20, "train": 0.20, "flag": 0.15,
    }),
    "night": (0.10, "dark", {
        "moon": 0.90, "lamp": 0.50, "house": 0.40, "road": 0.40, "car": 0.35, "tree": 0.15, "star": 0.70,
        "window": 0.20, "tent": 0.20, "train": 0.15,
    }),
    "mountains": (0.11, "cool", {
        "mountain": 0.95, "sky": 0.60, "tree": 0.55, "cloud": 0.45, "bird": 0.25, "sun": 0.30, "road": 0.15,
        "tent": 0.35, "balloon": 0.30, "train": 0.20, "flag": 0.10,
    }),
    "room": (0.12, "warm", {
        "table": 0.85, "chair": 0.75, "cup": 0.65, "lamp": 0.55, "flower": 0.30, "book": 0.65, "window": 0.50,
        "clock": 0.45,
    }),
    "garden": (0.08, "green", {
        "flower": 0.95, "fence": 0.60, "tree": 0.45, "chair": 0.35, "table": 0.25, "bird": 0.35, "sun": 0.30,
        "house": 0.20, "mushroom": 0.50, "book": 0.10,
    }),
}  # fmt: skip
"""Each scene type: its prior, the colours of its background, and the probability of each thing (0 if not listed)."""

_COLOURS = {
    "cool": ((0.57, 0.20, 0.84), (0.50, 0.16, 0.68)),
    "sand": ((0.10, 0.18, 0.90), (0.11, 0.30, 0.82)),
    "green": ((0.24, 0.16, 0.84), (0.29, 0.32, 0.64)),
    "grey": ((0.60, 0.06, 0.76), (0.08, 0.08, 0.60)),
    "warm": ((0.06, 0.20, 0.86), (0.05, 0.30, 0.62)),
    "dark": ((0.68, 0.35, 0.36), (0.65, 0.25, 0.28)),
}
"""Hue, saturation and value of the upper and of the lower part of a background."""

_BLOCK = 4096
"""Labels are drawn in blocks of this many images. Each block has its own seed."""
_TRAIN, _TEST, _PROXY = 0, 1, 2


@dataclass(frozen=True)
class ScenesOptions:
    """The options of the stream `scenes`."""

    classes: int = option(20, "number of classes", low=1)
    tasks: int = option(5, "number of tasks that the classes are divided into", low=1, flag="Data")
    train_images: int = option(6000, "number of training images of all tasks", low=1, high=10_000_000)
    test_images: int = option(1500, "number of test images", low=1, high=10_000_000)
    size: int = option(64, "height and width of an image in pixels", low=32, high=512)
    seed: int = option(0, "seed of the labels and images", low=0)
    labels: str = option(LABELS[0], LABELS_HELP, choices=LABELS)
    blurry: float = option(0.0, BLURRY_HELP, low=0, high=0.9)

    def __post_init__(self) -> None:
        if self.classes > len(_CLASSES):
            raise UserError(f"scenes has {len(_CLASSES)} classes, not {self.classes}: lower stream.classes")
        if self.tasks > self.classes:
            raise UserError(f"{self.classes} classes cannot be divided into {self.tasks} tasks: lower stream.tasks")
        if self.train_images < self.tasks:
            raise UserError(
                f"{self.train_images} training images are too few for {self.tasks} tasks: raise stream.train_images"
            )


def build(options: ScenesOptions) -> Stream:
    """The stream. Equal options give the same stream."""
    classes = _CLASSES[: options.classes]
    tasks = equal_tasks(classes, options.tasks)
    train = _make_split(options, tasks, _TRAIN, options.train_images)
    test = _make_split(options, tasks, _TEST, options.test_images)
    rules = {"source": "drawn", **dataclasses.asdict(options)}
    del rules["blurry"]  # see `named_streams.build`
    if options.labels == LABELS[0]:
        del rules["labels"]
    return Stream(
        "scenes", tasks, train, test, _truth(classes), rules, image_size=options.size, labels=options.labels,
        proxy=functools.partial(_proxy, options),
    )  # fmt: skip


def _proxy(options: ScenesOptions) -> Stream:
    """The proxy stream: the first classes that the stream does not use, in as many tasks, on other images."""
    sizes = proxy_sizes("scenes", equal_sizes(options.classes, options.tasks), len(_CLASSES) - options.classes)
    classes = _CLASSES[options.classes : options.classes + sum(sizes)]
    tasks = classes_to_tasks(classes, sizes)
    train = _make_split(options, tasks, _PROXY, options.train_images)
    return Stream("scenes-proxy", tasks, train, train.without_images(), _truth(classes), image_size=options.size)


# The label model


def _model(classes: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The prior of the scene types (S), and p[s, c] (S × C)."""
    prior = np.array([weight for weight, _, _ in _SCENES.values()])
    probability = np.array([[things.get(name, 0.0) for name in classes] for _, _, things in _SCENES.values()])
    return prior / prior.sum(), probability


def _truth(classes: tuple[str, ...]) -> np.ndarray:
    """P(C_i | C_j), entry [i, j], from the model."""
    prior, probability = _model(classes)
    joint = (probability * prior[:, None]).T @ probability
    conditional: np.ndarray = joint / (prior @ probability)[None, :]
    np.fill_diagonal(conditional, 1.0)
    return conditional


def _draw_labels(classes: tuple[str, ...], count: int, seed: int, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Scene types (N) and labels (N × C) of the first `count` images. A larger `count` only adds images."""
    prior, probability = _model(classes)
    edges = np.cumsum(prior)[:-1]
    scenes, labels = [], []
    for block in range(-(-count // _BLOCK)):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(split, block)))
        scene, present = np.zeros(_BLOCK, np.uint8), np.zeros((_BLOCK, len(classes)), bool)
        empty = np.arange(_BLOCK)
        while len(empty):
            scene[empty] = np.searchsorted(edges, rng.random(len(empty)), side="right")
            present[empty] = rng.random((len(empty), len(classes))) < probability[scene[empty]]
            empty = empty[~present[empty].any(axis=1)]
        scenes.append(scene)
        labels.append(present)
    return np.concatenate(scenes)[:count], np.concatenate(labels)[:count]


def _assign_tasks(labels: np.ndarray, tasks: tuple[Task, ...]) -> np.ndarray:
    """The task of each image: the smallest one so far among the tasks of its labels (the first one of equals)."""
    codes = np.zeros(len(labels), np.int64)
    for task in tasks:
        codes |= labels[:, task.columns].any(axis=1).astype(np.int64) << task.index
    choices = {code: [t.index for t in tasks if code >> t.index & 1] for code in np.unique(codes).tolist()}
    sizes, task_of = [0] * len(tasks), []
    for code in codes.tolist():
        index = min(choices[code], key=sizes.__getitem__)
        sizes[index] += 1
        task_of.append(index)
    return np.array(task_of, np.int64)


def _make_split(options: ScenesOptions, tasks: tuple[Task, ...], split: int, count: int) -> Split:
    images = _DrawnImages(options, tuple(name for task in tasks for name in task.classes), split, count)
    _, labels = images.drawn
    task_of = _assign_tasks(labels, tasks)
    rows = tuple(np.flatnonzero(task_of == index) for index in range(len(tasks)))
    for task, of_task in zip(tasks, rows, strict=True):
        if split != _TEST and not len(of_task):
            raise UserError(f"no training image has {' or '.join(task.classes)}: raise stream.train_images")
    return Split(images, Names(map(images.name, range(count))), Labels.from_dense(labels), rows)


# Images


class _DrawnImages:
    """An `ImageSource`: the images of one split, drawn from their labels when they are read."""

    drawn_from_labels = True

    def __init__(self, options: ScenesOptions, classes: tuple[str, ...], split: int, count: int) -> None:
        self.options, self.classes, self.split, self.present = options, classes, split, np.ones(count, bool)

    def __reduce__(self) -> Any:  # a copy in another process has no labels until it draws them
        return _DrawnImages, (self.options, self.classes, self.split, len(self))

    @functools.cached_property
    def drawn(self) -> tuple[np.ndarray, np.ndarray]:
        """Scene types and labels."""
        return _draw_labels(self.classes, len(self), self.options.seed, self.split)

    def __len__(self) -> int:
        return len(self.present)

    def name(self, row: int) -> str:
        return f"{('train', 'test', 'proxy')[self.split]}/{self.options.size}px-seed{self.options.seed}/{row}"

    def read(self, row: int, min_side: int = 0) -> Image.Image:
        if not 0 <= row < len(self):
            raise IndexError(f"rows must be in 0 … {len(self) - 1}")
        scenes, labels = self.drawn
        things = [self.classes[column] for column in np.flatnonzero(labels[row]).tolist()]
        key = f"{self.options.seed}/{self.split}/{row}"
        return Image.fromarray(_render(tuple(_SCENES)[scenes[row]], things, key, self.options.size))


def _render(scene: str, things: Collection[str], key: str, size: int) -> np.ndarray:
    """One image (size × size × 3, uint8) with the given things. `key` is the seed of everything else.

    Each layer and each thing has its own generator. So one more thing changes nothing but the positions of later
    things, which avoid it.
    """
    side = 2 * size  # drawn at twice the size, as the reduction at the end smooths the edges
    image = Image.new("RGB", (side, side))
    draw = ImageDraw.Draw(image)
    rng = Random(f"{key}/backdrop")
    horizon = rng.uniform(0.36, 0.6)
    _draw_background(draw, scene, horizon, rng)
    for name in ("sky", "mountain", "sea", "road"):
        if name in things:
            thing, thing_rng = THINGS[name], Random(f"{key}/{name}")
            thing.draw(Pen(draw, _ground_box(thing.zone, horizon, thing_rng)), thing_rng)
    _draw_clutter(draw, rng.randint(1, 4), 0.05, 0.13, rng)
    _draw_objects(draw, things, horizon, key)
    _draw_clutter(draw, rng.randint(0, 2), 0.03, 0.08, rng)
    return _add_light(np.asarray(image.reduce(2)), Random(f"{key}/light"))


def _draw_background(draw: ImageDraw.ImageDraw, scene: str, horizon: float, rng: Random) -> None:
    """Wall and floor in the colours of the scene or, with probability 1/2, in random ones.

    The wall has strokes, so that it does not look like a sky.
    """
    colours = _SCENES[scene][1] if rng.random() < 0.5 else rng.choice(tuple(_COLOURS))
    wall, floor = (near(rng, *colour, spread=0.08) for colour in _COLOURS[colours])
    Pen(draw, (0, 0, 1, horizon)).fade(wall, times(wall, rng.uniform(0.85, 1.1)), 4)
    Pen(draw, (0, horizon, 1, 1 - horizon)).fade(floor, times(floor, rng.uniform(0.85, 1.15)), 6)
    pen, slope = Pen(draw, (0, 0, 1, 1)), rng.choice(((0.0, 0.09), (0.09, 0.0), (0.06, 0.06)))
    for _ in range(22):
        u, v = rng.random(), rng.uniform(0.0, horizon - 0.09)
        pen.line(times(wall, rng.uniform(0.88, 1.1)), 0.02, (u, v), (u + slope[0], v + slope[1]))
    for _ in range(10):
        u, v, w = rng.random(), rng.uniform(horizon + 0.04, 1.0), rng.uniform(0.05, 0.2)
        pen.oval(times(floor, rng.uniform(0.88, 1.1)), u - w, max(v - w / 4, horizon), u + w, v + w / 4, edge=False)


def _ground_box(zone: str, horizon: float, rng: Random) -> Box:
    """The box of a sky, mountain, sea or road. It depends on the horizon."""
    if zone == "top":
        return 0.0, 0.0, 1.0, horizon
    if zone == "bottom":
        return 0.0, horizon, 1.0, 1.0 - horizon
    width, height = rng.uniform(0.7, 1.1), rng.uniform(0.24, 0.4)
    return rng.uniform(-0.1, 1.1 - width), horizon + 0.04 - height, width, height


def _draw_objects(draw: ImageDraw.ImageDraw, things: Collection[str], horizon: float, key: str) -> None:
    """Draw all other things, in boxes with little overlap. Larger things are mostly drawn first."""
    placed: list[tuple[float, Box, str, Random]] = []
    for name in _CLASSES:
        thing = THINGS[name]
        if name not in things or thing.zone in ("top", "bottom", "ridge"):
            continue
        rng = Random(f"{key}/{name}")
        boxes = [_random_box(thing, horizon, rng) for _ in range(5)]
        box = min(boxes, key=lambda b: sum(_overlap(b, other) for _, other, _, _ in placed))
        placed.append((-box[2] * box[3] * rng.uniform(0.5, 1.5), box, name, rng))
    for _, box, name, rng in sorted(placed, key=lambda entry: entry[0]):
        THINGS[name].draw(Pen(draw, box, flip=rng.random() < 0.5), rng)


def _random_box(thing: Thing, horizon: float, rng: Random) -> Box:
    width = rng.uniform(thing.small, thing.large)
    height = width * thing.aspect
    left = rng.uniform(-0.08, 1.08 - width)
    if thing.zone == "high":
        return left, rng.uniform(-0.02, max(0.06, horizon - height * 0.6)), width, height
    low = rng.uniform(max(horizon + 0.12, height - 0.05), 1.02) if thing.zone == "low" else rng.uniform(height, 1.0)
    return left, low - height, width, height


def _overlap(a: Box, b: Box) -> float:
    """The common area of two boxes, as a share of the smaller box."""
    wide = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    tall = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    return max(wide, 0.0) * max(tall, 0.0) / min(a[2] * a[3], b[2] * b[3])


def _draw_clutter(draw: ImageDraw.ImageDraw, count: int, small: float, large: float, rng: Random) -> None:
    """Shapes without a label: ovals, polygons, lines and rectangles in muted colours."""
    for _ in range(count):
        colour = hsv(rng.random(), rng.uniform(0.1, 0.5), rng.uniform(0.35, 0.9))
        width, kind = rng.uniform(small, large), rng.randrange(4)
        pen = Pen(draw, (rng.random() - width / 2, rng.random() - width / 2, width, width))
        if kind == 0:
            pen.oval(colour, 0, 0.2, 1, 0.8)
        elif kind == 1:
            pen.poly(colour, (rng.random(), 0), (1, rng.random()), (rng.random(), 1), (0, rng.random()))
        elif kind == 2:
            pen.line(colour, 0.15, (0, rng.random()), (1, rng.random()))
        else:
            pen.rect(colour, 0, 0, 1, rng.uniform(0.3, 1))


def _add_light(pixels: np.ndarray, rng: Random) -> np.ndarray:
    """Change brightness and tint, and add noise. Integers give the same bytes on every machine."""
    light = rng.uniform(0.88, 1.12)
    gain = np.array([round(256 * light * rng.uniform(0.92, 1.08)) for _ in range(3)], np.int32)
    grain = np.frombuffer(rng.randbytes(pixels.size), np.int8).reshape(pixels.shape).astype(np.int32)
    amount = rng.randint(3, 7)
    exposed: np.ndarray = np.clip((pixels * gain + grain * (2 * amount)) >> 8, 0, 255).astype(np.uint8)
    return exposed
