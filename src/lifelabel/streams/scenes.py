"""The `scenes` stream: procedural pictures of everyday things whose co-occurrence is known exactly.

A picture is of one scene type s, drawn with prior pi_s; given s, thing c is in it with probability p[s, c],
independently of the others. A picture that shows none of the chosen classes is drawn again, which leaves the
conditional probabilities alone, so for i != j

    P(C_i | C_j) = sum_s pi_s p[s, i] p[s, j] / sum_s pi_s p[s, j].

Each picture goes to one task among those of its labels, the least filled so far: tasks are balanced and disjoint,
and all pictures together stay independent draws from the model. The pixels of a picture follow from the seed, the
split and the row number alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import numpy as np
from PIL import Image, ImageDraw

from lifelabel.errors import UserError
from lifelabel.options import option
from lifelabel.streams.base import Labels, Names, Split, Stream, Task, split_classes
from lifelabel.streams.scenes_draw import THINGS, Box, Pen, Thing, hsv, near, times

# Neighbours belong to different scenes, so that most strong relations run across tasks.
CATALOGUE = (
    *("sky", "boat", "house", "cup"),
    *("sea", "tree", "car", "table"),
    *("sun", "road", "lamp", "flower"),
    *("cloud", "fish", "chair", "moon"),
    *("bird", "fence", "umbrella", "mountain"),
    *("window", "star", "kite", "tent"),
    *("book", "train", "balloon", "flag"),
    *("clock", "mushroom"),
)

SCENES: dict[str, tuple[float, str, dict[str, float]]] = {
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
"""Each scene type: its prior, the mood of its backdrop, and how probable each thing is in it (0 where left out)."""

MOODS = {
    "cool": ((0.57, 0.20, 0.84), (0.50, 0.16, 0.68)),
    "sand": ((0.10, 0.18, 0.90), (0.11, 0.30, 0.82)),
    "green": ((0.24, 0.16, 0.84), (0.29, 0.32, 0.64)),
    "grey": ((0.60, 0.06, 0.76), (0.08, 0.08, 0.60)),
    "warm": ((0.06, 0.20, 0.86), (0.05, 0.30, 0.62)),
    "dark": ((0.68, 0.35, 0.36), (0.65, 0.25, 0.28)),
}
"""Hue, saturation and value of the upper and of the lower part of a backdrop."""

BLOCK = 4096  # labels are drawn in blocks of this many images, each block from a seed of its own
TRAIN, TEST = 0, 1


@dataclass(frozen=True)
class ScenesOptions:
    classes: int = option(20, "how many classes", low=1)
    tasks: int = option(5, "how many tasks the classes are cut into", low=1)
    train_images: int = option(6000, "how many training images, over all tasks", low=1, high=10_000_000)
    test_images: int = option(1500, "how many test images", low=1, high=10_000_000)
    size: int = option(64, "height and width of an image in pixels", low=32, high=512)
    seed: int = option(0, "seed of labels and images", low=0)

    def __post_init__(self) -> None:
        if self.classes > len(CATALOGUE):
            raise UserError(f"scenes has {len(CATALOGUE)} classes, not {self.classes}: lower stream.classes")
        if self.tasks > self.classes:
            raise UserError(f"{self.classes} classes cannot be cut into {self.tasks} tasks: lower stream.tasks")
        if self.train_images < self.tasks:
            raise UserError(
                f"{self.train_images} training images are too few for {self.tasks} tasks: raise stream.train_images"
            )


def build(options: ScenesOptions) -> Stream:
    """The stream; equal options give the same one."""
    classes = CATALOGUE[: options.classes]
    tasks = split_classes(classes, options.tasks)
    train = _split(options, tasks, TRAIN, options.train_images)
    test = _split(options, tasks, TEST, options.test_images)
    for task, rows in zip(tasks, train.rows, strict=True):
        if not len(rows):
            raise UserError(f"no training image shows {' or '.join(task.classes)}: raise stream.train_images")
    rules = {"source": "drawn", **dataclasses.asdict(options)}
    return Stream("scenes", tasks, train, test, truth(classes), rules, image_size=options.size)


def model(classes: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The prior over scene types (S) and p[s, c] (S × C)."""
    prior = np.array([weight for weight, _, _ in SCENES.values()])
    chance = np.array([[things.get(name, 0.0) for name in classes] for _, _, things in SCENES.values()])
    return prior / prior.sum(), chance


def truth(classes: tuple[str, ...]) -> np.ndarray:
    """P(C_i | C_j), entry [i, j], from the model."""
    prior, chance = model(classes)
    joint = (chance * prior[:, None]).T @ chance
    conditional: np.ndarray = joint / (prior @ chance)[None, :]
    np.fill_diagonal(conditional, 1.0)
    return conditional


def draw_labels(classes: tuple[str, ...], count: int, seed: int, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Scene types (N) and labels (N × C) of the first `count` images: a larger `count` only adds images."""
    prior, chance = model(classes)
    edges = np.cumsum(prior)[:-1]
    scenes, labels = [], []
    for block in range(-(-count // BLOCK)):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(split, block)))
        scene, shown = np.zeros(BLOCK, np.uint8), np.zeros((BLOCK, len(classes)), bool)
        empty = np.arange(BLOCK)
        while len(empty):
            scene[empty] = np.searchsorted(edges, rng.random(len(empty)), side="right")
            shown[empty] = rng.random((len(empty), len(classes))) < chance[scene[empty]]
            empty = empty[~shown[empty].any(axis=1)]
        scenes.append(scene)
        labels.append(shown)
    return np.concatenate(scenes)[:count], np.concatenate(labels)[:count]


def allot(labels: np.ndarray, tasks: tuple[Task, ...]) -> np.ndarray:
    """For each image in turn, the least-filled task among those of its labels (the lowest of equals)."""
    codes = np.zeros(len(labels), np.int64)
    for task in tasks:
        codes |= labels[:, task.columns].any(axis=1).astype(np.int64) << task.index
    open_to = {code: [t.index for t in tasks if code >> t.index & 1] for code in np.unique(codes).tolist()}
    filled, task_of = [0] * len(tasks), []
    for code in codes.tolist():
        index = min(open_to[code], key=filled.__getitem__)
        filled[index] += 1
        task_of.append(index)
    return np.array(task_of, np.int64)


@dataclass(frozen=True)
class Recipe:
    """How to draw the pictures of one split."""

    options: ScenesOptions
    split: int
    count: int
    knows_labels: ClassVar[bool] = True

    @property
    def present(self) -> np.ndarray:
        return np.ones(self.count, bool)

    def __len__(self) -> int:
        return self.count

    def name(self, row: int) -> str:
        return f"{'train' if self.split == TRAIN else 'test'}/{self.options.size}px-seed{self.options.seed}/{row}"

    def open(self) -> Drawn:
        return Drawn(self)


class Drawn:
    """The pictures of one split by row number, drawn when asked for.

    They are drawn from the labels. What is handed about is a `Recipe`, which has none.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.options, self.split = recipe, recipe.options, recipe.split
        self.present = recipe.present
        self.drawn = draw_labels(CATALOGUE[: self.options.classes], len(recipe), self.options.seed, self.split)

    def __len__(self) -> int:
        return len(self.recipe)

    def name(self, row: int) -> str:
        return self.recipe.name(row)

    def sealed(self) -> Recipe:
        return self.recipe

    def picture(self, row: int, least: int = 0) -> Image.Image:
        if not 0 <= row < len(self):
            raise IndexError(f"rows must lie in 0 … {len(self) - 1}")
        scenes, labels = self.drawn
        shown = [CATALOGUE[column] for column in np.flatnonzero(labels[row]).tolist()]
        key = f"{self.options.seed}/{self.split}/{row}"
        return Image.fromarray(render(tuple(SCENES)[scenes[row]], shown, key, self.options.size))


def render(scene: str, shown: Collection[str], key: str, size: int) -> np.ndarray:
    """One picture (size × size × 3, uint8) of the things `shown`; `key` decides everything else.

    Every layer and every thing has a generator of its own, so that one more thing changes nothing else but the
    places that later things choose to stay clear of it.
    """
    side = 2 * size  # drawn at twice the size: the reduction at the end smooths the edges
    image = Image.new("RGB", (side, side))
    draw = ImageDraw.Draw(image)
    rng = Random(f"{key}/backdrop")
    horizon = rng.uniform(0.36, 0.6)
    _backdrop(draw, scene, horizon, rng)
    for name in ("sky", "mountain", "sea", "road"):
        if name in shown:
            own = Random(f"{key}/{name}")
            THINGS[name].draw(Pen(draw, _ground(THINGS[name].zone, horizon, own)), own)
    _clutter(draw, rng.randint(1, 4), 0.05, 0.13, rng)
    _objects(draw, shown, horizon, key)
    _clutter(draw, rng.randint(0, 2), 0.03, 0.08, rng)
    return _expose(np.asarray(image.reduce(2)), Random(f"{key}/light"))


def _backdrop(draw: ImageDraw.ImageDraw, scene: str, horizon: float, rng: Random) -> None:
    """Wall and floor in the scene's mood or, as often, in any mood; roughened, so that no wall passes for a sky."""
    mood = SCENES[scene][1] if rng.random() < 0.5 else rng.choice(tuple(MOODS))
    wall, floor = (near(rng, *colour, spread=0.08) for colour in MOODS[mood])
    Pen(draw, (0, 0, 1, horizon)).fade(wall, times(wall, rng.uniform(0.85, 1.1)), 4)
    Pen(draw, (0, horizon, 1, 1 - horizon)).fade(floor, times(floor, rng.uniform(0.85, 1.15)), 6)
    pen, slope = Pen(draw, (0, 0, 1, 1)), rng.choice(((0.0, 0.09), (0.09, 0.0), (0.06, 0.06)))
    for _ in range(22):
        u, v = rng.random(), rng.uniform(0.0, horizon - 0.09)
        pen.line(times(wall, rng.uniform(0.88, 1.1)), 0.02, (u, v), (u + slope[0], v + slope[1]))
    for _ in range(10):
        u, v, w = rng.random(), rng.uniform(horizon + 0.04, 1.0), rng.uniform(0.05, 0.2)
        pen.oval(times(floor, rng.uniform(0.88, 1.1)), u - w, max(v - w / 4, horizon), u + w, v + w / 4, edge=False)


def _ground(zone: str, horizon: float, rng: Random) -> Box:
    """The box of a thing that makes up the ground or the distance: it hangs on the horizon."""
    if zone == "top":
        return 0.0, 0.0, 1.0, horizon
    if zone == "bottom":
        return 0.0, horizon, 1.0, 1.0 - horizon
    width, height = rng.uniform(0.7, 1.1), rng.uniform(0.24, 0.4)
    return rng.uniform(-0.1, 1.1 - width), horizon + 0.04 - height, width, height


def _objects(draw: ImageDraw.ImageDraw, shown: Collection[str], horizon: float, key: str) -> None:
    """Place the loose things where they hide each other least, then draw the larger ones mostly first."""
    placed: list[tuple[float, Box, str, Random]] = []
    for name in CATALOGUE:
        thing = THINGS[name]
        if name not in shown or thing.zone in ("top", "bottom", "ridge"):
            continue
        rng = Random(f"{key}/{name}")
        boxes = [_spot(thing, horizon, rng) for _ in range(5)]
        box = min(boxes, key=lambda b: sum(_overlap(b, other) for _, other, _, _ in placed))
        placed.append((-box[2] * box[3] * rng.uniform(0.5, 1.5), box, name, rng))
    for _, box, name, rng in sorted(placed, key=lambda entry: entry[0]):
        THINGS[name].draw(Pen(draw, box, flip=rng.random() < 0.5), rng)


def _spot(thing: Thing, horizon: float, rng: Random) -> Box:
    width = rng.uniform(thing.small, thing.large)
    height = width * thing.aspect
    left = rng.uniform(-0.08, 1.08 - width)
    if thing.zone == "high":
        return left, rng.uniform(-0.02, max(0.06, horizon - height * 0.6)), width, height
    low = rng.uniform(max(horizon + 0.12, height - 0.05), 1.02) if thing.zone == "low" else rng.uniform(height, 1.0)
    return left, low - height, width, height


def _overlap(a: Box, b: Box) -> float:
    """The shared area as a share of the smaller box."""
    wide = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    tall = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    return max(wide, 0.0) * max(tall, 0.0) / min(a[2] * a[3], b[2] * b[3])


def _clutter(draw: ImageDraw.ImageDraw, count: int, small: float, large: float, rng: Random) -> None:
    """Shapes that are no thing: pebbles, shards, bars and tiles in muted colours."""
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


def _expose(pixels: np.ndarray, rng: Random) -> np.ndarray:
    """Light, tint and grain, in whole numbers so that every machine gets the same bytes."""
    light = rng.uniform(0.88, 1.12)
    gain = np.array([round(256 * light * rng.uniform(0.92, 1.08)) for _ in range(3)], np.int32)
    grain = np.frombuffer(rng.randbytes(pixels.size), np.int8).reshape(pixels.shape).astype(np.int32)
    amount = rng.randint(3, 7)
    exposed: np.ndarray = np.clip((pixels * gain + grain * (2 * amount)) >> 8, 0, 255).astype(np.uint8)
    return exposed


def _split(options: ScenesOptions, tasks: tuple[Task, ...], split: int, count: int) -> Split:
    images = Recipe(options, split, count).open()
    task = allot(images.drawn[1], tasks)
    rows = tuple(np.flatnonzero(task == index) for index in range(len(tasks)))
    return Split(images, Names(map(images.name, range(count))), Labels.of_dense(images.drawn[1]), rows)
