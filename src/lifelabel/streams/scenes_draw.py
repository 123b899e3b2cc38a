"""The things of the `scenes` stream. One small function draws one thing. `THINGS` has them by name.

A thing is drawn with a `Pen` inside its own box (u to the right, v down, both 0 … 1) and varies with the given
generator. Most things have a usual hue, and sometimes another one. The hues of different things overlap, so that
colour is not enough to recognise a thing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from PIL import ImageDraw

_Colour = tuple[int, int, int]
"""Red, green and blue, 0 … 255."""
Box = tuple[float, float, float, float]
"""Left, top, width and height, as shares of the side of the image."""


def hsv(h: float, s: float, v: float) -> _Colour:
    """Hue (wraps), saturation and value (clipped to 0 … 1) as RGB bytes."""
    h, s, v = h % 1.0, min(max(s, 0.0), 1.0), min(max(v, 0.0), 1.0)
    red, green, blue = (v - v * s * max(0.0, min(k := (n + h * 6) % 6, 4 - k, 1.0)) for n in (5, 3, 1))
    return round(255 * red), round(255 * green), round(255 * blue)


def near(rng: Random, h: float, s: float, v: float, spread: float = 0.05) -> _Colour:
    """A random colour close to the given one."""
    return hsv(h + rng.uniform(-spread, spread), s + rng.uniform(-0.15, 0.15), v + rng.uniform(-0.13, 0.1))


def _vivid(rng: Random, usual: float | None = None) -> _Colour:
    """A strong colour: mostly close to the hue `usual`, else of any hue."""
    hue = usual + rng.uniform(-0.06, 0.06) if usual is not None and rng.random() < 0.8 else rng.random()
    return hsv(hue, rng.uniform(0.5, 0.95), rng.uniform(0.6, 1.0))


def _pale(rng: Random) -> _Colour:
    """A light colour of any hue."""
    return hsv(rng.random(), rng.uniform(0.0, 0.18), rng.uniform(0.82, 1.0))


def times(colour: _Colour, factor: float) -> _Colour:
    """The colour multiplied by a factor, at most 255."""
    red, green, blue = (min(255, round(part * factor)) for part in colour)
    return red, green, blue


def _between(a: _Colour, b: _Colour, share: float) -> _Colour:
    """The colour at `share` of the way from `a` to `b`."""
    red, green, blue = (round(x + (y - x) * share) for x, y in zip(a, b, strict=True))
    return red, green, blue


class Pen:
    """Draws in the unit coordinates of one box; `flip` mirrors left and right."""

    def __init__(self, draw: ImageDraw.ImageDraw, box: Box, flip: bool = False) -> None:
        side = draw.im.size[0]
        self.draw, self.flip = draw, flip
        self.x, self.y, self.w, self.h = (part * side for part in box)
        self.edge = max(1, side // 128)

    def at(self, u: float, v: float) -> tuple[int, int]:
        return round(self.x + self.w * (1 - u if self.flip else u)), round(self.y + self.h * v)

    def corners(self, u0: float, v0: float, u1: float, v1: float) -> tuple[int, int, int, int]:
        (xa, ya), (xb, yb) = self.at(u0, v0), self.at(u1, v1)
        return min(xa, xb), min(ya, yb), max(xa, xb), max(ya, yb)

    def poly(self, fill: _Colour, *points: tuple[float, float]) -> None:
        self.draw.polygon([self.at(u, v) for u, v in points], fill, times(fill, 0.6), self.edge)

    def rect(self, fill: _Colour, u0: float, v0: float, u1: float, v1: float) -> None:
        self.draw.rectangle(self.corners(u0, v0, u1, v1), fill, times(fill, 0.6), self.edge)

    def band(self, fill: _Colour, u0: float, v0: float, u1: float, v1: float) -> None:
        """A rectangle without an outline."""
        self.draw.rectangle(self.corners(u0, v0, u1, v1), fill)

    def oval(self, fill: _Colour, u0: float, v0: float, u1: float, v1: float, edge: bool = True) -> None:
        self.draw.ellipse(self.corners(u0, v0, u1, v1), fill, times(fill, 0.6) if edge else None, self.edge)

    def pie(self, fill: _Colour, u0: float, v0: float, u1: float, v1: float, start: float, end: float) -> None:
        self.draw.pieslice(self.corners(u0, v0, u1, v1), start, end, fill, times(fill, 0.6), self.edge)

    def line(self, fill: _Colour, width: float, *points: tuple[float, float]) -> None:
        """A line through the points. `width` is a share of the width of the box."""
        self.draw.line([self.at(u, v) for u, v in points], fill, max(1, round(width * self.w)))

    def ring(self, fill: _Colour, width: float, u0: float, v0: float, u1: float, v1: float) -> None:
        self.draw.ellipse(self.corners(u0, v0, u1, v1), None, fill, max(1, round(width * self.w)))

    def fade(self, top: _Colour, bottom: _Colour, steps: int = 14) -> None:
        """Fill the box with colours from `top` down to `bottom`."""
        for step in range(steps):
            self.band(_between(top, bottom, step / (steps - 1)), 0, step / steps, 1, (step + 1) / steps)


_Drawing = Callable[[Pen, Random], None]


class Thing(NamedTuple):
    """How a thing is drawn, its zone in the image, and its smallest and largest width as shares of the side."""

    draw: _Drawing
    zone: str
    """"top", "bottom" and "ridge" fill a part of the image; "high", "low" and "any" are where an object may be."""
    small: float
    large: float
    aspect: float
    """Height divided by width."""


THINGS: dict[str, Thing] = {}


def _thing(zone: str, small: float = 1.0, large: float = 1.0, aspect: float = 1.0) -> Callable[[_Drawing], _Drawing]:
    """Register the drawing function `_name` as the thing `name`. The arguments are the fields of `Thing`."""

    def register(draw: _Drawing) -> _Drawing:
        THINGS[draw.__name__.removeprefix("_")] = Thing(draw, zone, small, large, aspect)
        return draw

    return register


@_thing("top")
def _sky(pen: Pen, rng: Random) -> None:
    colours = ((0.57, 0.55, 0.92), (0.60, 0.40, 0.80), (0.70, 0.35, 0.75), (0.64, 0.6, 0.45), (0.52, 0.4, 0.9))
    h, s, v = rng.choice(colours)
    glow = rng.choice([near(rng, 0.08, 0.35, 0.95), near(rng, 0.95, 0.25, 0.92), near(rng, h, 0.12, 0.97)])
    pen.fade(near(rng, h, s, v), glow)


@_thing("ridge")
def _mountain(pen: Pen, rng: Random) -> None:
    rock = near(rng, rng.choice([0.07, 0.3, 0.62, 0.72]), 0.25, 0.55)
    for centre in (rng.uniform(0.65, 0.85), rng.uniform(0.25, 0.45)):
        top, half = rng.uniform(0.0, 0.3), rng.uniform(0.3, 0.42)
        pen.poly(rock, (centre - half, 1), (centre, top), (centre + half, 1))
        pen.poly(times(rock, 0.75), (centre, top), (centre + half, 1), (centre + half * 0.2, 1))
        cap = 0.32 * (1 - top)
        low, run = top + cap, half * 0.32
        snow = ((-run, low), (0, top), (run, low), (run * 0.3, low - cap * 0.3), (-run * 0.2, low + cap * 0.1))
        pen.poly(_pale(rng), *((centre + u, v) for u, v in snow))
        rock = times(rock, 1.15)


@_thing("bottom")
def _sea(pen: Pen, rng: Random) -> None:
    water = near(rng, rng.choice([0.48, 0.55, 0.6]), 0.55, rng.choice([0.45, 0.65, 0.8]))
    shore, crest = rng.uniform(0.55, 1.0), _between(water, (255, 255, 255), 0.45)
    pen.band(water, 0, 0, 1, shore)
    for row in range(4):
        v, phase, step = shore * (0.14 + 0.24 * row), rng.random() * 0.2, 0.05 + 0.015 * row
        wave = [(phase - 0.2 + step * k, v + (0.03 if k % 2 else -0.03)) for k in range(int(1.3 / step))]
        pen.line(crest, 0.016, *wave)


@_thing("bottom")
def _road(pen: Pen, rng: Random) -> None:
    tar, paint = hsv(rng.random(), rng.uniform(0, 0.12), rng.uniform(0.25, 0.5)), _pale(rng)
    if rng.random() < 0.4:
        top = rng.uniform(0.3, 0.6)
        pen.band(tar, 0, top, 1, top + 0.34)
        for k in range(6):
            pen.band(paint, 0.18 * k, top + 0.15, 0.18 * k + 0.1, top + 0.19)
        return
    far, near_end, half = rng.uniform(0.25, 0.75), rng.uniform(0.3, 0.7), rng.uniform(0.24, 0.36)
    pen.poly(tar, (far - 0.04, 0), (far + 0.04, 0), (near_end + half, 1), (near_end - half, 1))
    for start in (0.12, 0.38, 0.7):
        a, b = start, start + 0.2
        ua, ub = (far + (near_end - far) * v for v in (a, b))
        pen.poly(paint, (ua - 0.03 * a, a), (ua + 0.03 * a, a), (ub + 0.04 * b, b), (ub - 0.04 * b, b))


@_thing("low", 0.55, 0.95, 0.38)
def _fence(pen: Pen, rng: Random) -> None:
    wood, count = rng.choice([_pale(rng), _pale(rng), near(rng, 0.08, 0.45, 0.55), _vivid(rng, 0.3)]), rng.randint(6, 8)
    for v in (0.35, 0.7):
        pen.rect(times(wood, 0.85), 0, v, 1, v + 0.12)
    for k in range(count):
        u, w = k / count, 0.55 / count
        pen.poly(wood, (u, 1), (u, 0.2), (u + w / 2, 0), (u + w, 0.2), (u + w, 1))


@_thing("high", 0.28, 0.44)
def _sun(pen: Pen, rng: Random) -> None:
    fire, turn, rays = near(rng, rng.choice([0.02, 0.1, 0.14]), 0.7, 1.0, 0.03), rng.random(), rng.choice([8, 10, 12])
    for k in range(rays):
        a = 2 * math.pi * (k + turn) / rays
        c, s = math.cos(a), math.sin(a)
        pen.line(fire, 0.06, (0.5 + 0.36 * c, 0.5 + 0.36 * s), (0.5 + 0.5 * c, 0.5 + 0.5 * s))
    pen.oval(fire, 0.22, 0.22, 0.78, 0.78)


@_thing("high", 0.26, 0.4)
def _moon(pen: Pen, rng: Random) -> None:
    light = near(rng, rng.choice([0.14, 0.15, 0.16]), 0.3, 0.97)
    if rng.random() < 0.3:
        pen.oval(light, 0, 0, 1, 1)
        for u, v, r in ((0.35, 0.35, 0.13), (0.65, 0.55, 0.1), (0.4, 0.7, 0.08)):
            pen.oval(times(light, 0.8), u - r, v - r, u + r, v + r, edge=False)
        return
    bite, lean = rng.uniform(0.1, 0.5), rng.uniform(-0.6, 0.6)
    angles = [math.pi * k / 10 for k in range(11)]
    outer = [(-math.sin(a), math.cos(a)) for a in angles]
    inner = [(-bite * math.sin(a), math.cos(a)) for a in reversed(angles)]
    c, s = math.cos(lean), math.sin(lean)
    pen.poly(light, *((0.6 + 0.5 * (x * c - y * s), 0.5 + 0.5 * (x * s + y * c)) for x, y in outer + inner))


@_thing("high", 0.44, 0.64, 0.5)
def _cloud(pen: Pen, rng: Random) -> None:
    puff = rng.choice([_pale(rng), near(rng, 0.6, 0.04, 0.92), near(rng, 0.95, 0.12, 0.98)])
    humps = ((0.0, 0.4, 0.45, 1.0), (0.55, 0.35, 1.0, 1.0), (0.18, 0.05, 0.6, 0.9), (0.42, 0.15, 0.82, 0.95))
    for u0, v0, u1, v1 in humps:
        pen.oval(times(puff, 0.72), u0, v0 + 0.06, u1, v1, edge=False)
    for u0, v0, u1, v1 in humps:
        pen.oval(puff, u0 + 0.02, v0, u1 - 0.02, v1 - 0.08, edge=False)


@_thing("high", 0.36, 0.52, 0.62)
def _bird(pen: Pen, rng: Random) -> None:
    plume = rng.choice([near(rng, 0.6, 0.3, 0.2), near(rng, 0.6, 0.3, 0.2), _vivid(rng, 0.68)])
    pen.poly(plume, (0.0, 0.45), (0.25, 0.5), (0.2, 0.68))
    pen.oval(plume, 0.15, 0.42, 0.78, 0.82)
    pen.oval(plume, 0.64, 0.3, 0.9, 0.66)
    pen.poly((235, 160, 40), (0.88, 0.42), (1.0, 0.5), (0.88, 0.55))
    lift = rng.choice([0.0, 0.0, 1.05])
    pen.poly(times(plume, 0.78), (0.3, 0.58), (0.6, 0.58), (0.28, lift))
    pen.oval((15, 15, 20), 0.76, 0.42, 0.82, 0.5, edge=False)


@_thing("low", 0.36, 0.56, 0.9)
def _boat(pen: Pen, rng: Random) -> None:
    hull, sail = _vivid(rng, 0.02), rng.choice([_pale(rng), _pale(rng), _vivid(rng)])
    pen.line(times(hull, 0.5), 0.05, (0.5, 0.02), (0.5, 0.75))
    pen.poly(sail, (0.54, 0.04), (0.54, 0.66), (0.92, 0.66))
    pen.poly(times(sail, 0.88), (0.46, 0.14), (0.46, 0.66), (0.16, 0.66))
    pen.poly(hull, (0, 0.72), (1, 0.72), (0.82, 1), (0.16, 1))


@_thing("low", 0.38, 0.54, 0.6)
def _fish(pen: Pen, rng: Random) -> None:
    scale = _vivid(rng, 0.07)
    pen.poly(times(scale, 0.8), (0.0, 0.12), (0.32, 0.5), (0.0, 0.88), (0.08, 0.5))
    pen.poly(times(scale, 0.8), (0.45, 0.2), (0.55, 0.0), (0.72, 0.2))
    pen.oval(scale, 0.2, 0.12, 1.0, 0.88)
    pen.line(times(scale, 0.6), 0.04, (0.7, 0.25), (0.64, 0.5), (0.7, 0.75))
    pen.oval((250, 250, 250), 0.78, 0.3, 0.9, 0.5)
    pen.oval((10, 10, 20), 0.82, 0.36, 0.88, 0.47, edge=False)


@_thing("low", 0.3, 0.46, 1.35)
def _tree(pen: Pen, rng: Random) -> None:
    leaf = near(rng, rng.choice([0.05, 0.14, 0.28, 0.33, 0.38]), 0.55, 0.55)
    pen.rect(near(rng, 0.07, 0.5, 0.4), 0.42, 0.55, 0.58, 1)
    if rng.random() < 0.4:
        for k, (top, low, half) in enumerate(((0.42, 0.82, 0.5), (0.22, 0.6, 0.42), (0.0, 0.38, 0.32))):
            pen.poly(times(leaf, 0.85 + 0.12 * k), (0.5 - half, low), (0.5, top), (0.5 + half, low))
        return
    for u0, v0, u1, v1 in ((0.0, 0.25, 0.6, 0.68), (0.4, 0.25, 1.0, 0.68), (0.15, 0.0, 0.85, 0.55)):
        pen.oval(leaf, u0, v0, u1, v1)
    pen.oval(times(leaf, 1.2), 0.28, 0.08, 0.6, 0.32, edge=False)


@_thing("low", 0.36, 0.54, 0.95)
def _house(pen: Pen, rng: Random) -> None:
    wall, roof = rng.choice([_pale(rng), _vivid(rng, 0.1)]), _vivid(rng, 0.02)
    glass = rng.choice([(250, 225, 130), (90, 120, 160)])
    pen.rect(times(roof, 0.7), 0.7, 0.06, 0.82, 0.4)
    pen.rect(wall, 0.1, 0.42, 0.9, 1)
    pen.poly(roof, (0, 0.46), (0.5, 0), (1, 0.46))
    pen.rect(times(roof, 0.6), 0.42, 0.66, 0.6, 1)
    for u in (0.17, 0.67):
        pen.rect(glass, u, 0.58, u + 0.16, 0.74)


@_thing("low", 0.38, 0.58, 0.5)
def _car(pen: Pen, rng: Random) -> None:
    body, glass = _vivid(rng, 0.6), (190, 215, 230)
    pen.poly(body, (0.14, 0.5), (0.28, 0.06), (0.66, 0.06), (0.84, 0.5))
    pen.poly(glass, (0.24, 0.46), (0.33, 0.16), (0.45, 0.16), (0.45, 0.46))
    pen.poly(glass, (0.5, 0.46), (0.5, 0.16), (0.63, 0.16), (0.74, 0.46))
    pen.poly(body, (0, 0.5), (0.9, 0.46), (1, 0.62), (1, 0.82), (0, 0.82))
    for u in (0.12, 0.64):
        pen.oval((30, 30, 34), u, 0.6, u + 0.23, 1.04)
        pen.oval((190, 190, 195), u + 0.07, 0.73, u + 0.16, 0.91, edge=False)


@_thing("low", 0.28, 0.4, 1.4)
def _lamp(pen: Pen, rng: Random) -> None:
    shade, metal = rng.choice([_vivid(rng, 0.13), near(rng, 0.13, 0.5, 1.0)]), near(rng, rng.random(), 0.2, 0.4)
    pen.rect(metal, 0.44, 0.38, 0.56, 0.94)
    pen.oval(metal, 0.2, 0.88, 0.8, 1)
    pen.poly(shade, (0.28, 0), (0.72, 0), (1, 0.42), (0, 0.42))
    pen.poly((255, 245, 190), (0.12, 0.42), (0.88, 0.42), (0.78, 0.5), (0.22, 0.5))


@_thing("low", 0.46, 0.68, 0.55)
def _table(pen: Pen, rng: Random) -> None:
    wood = rng.choice([near(rng, 0.07, 0.55, 0.6), near(rng, 0.07, 0.5, 0.5), _vivid(rng)])
    for u in (0.08, 0.84):
        pen.rect(times(wood, 0.75), u, 0.2, u + 0.08, 1)
    for u in (0.24, 0.7):
        pen.rect(times(wood, 0.6), u, 0.24, u + 0.06, 0.8)
    pen.poly(wood, (0.14, 0), (0.86, 0), (1, 0.24), (0, 0.24))
    pen.band(times(wood, 0.7), 0, 0.24, 1, 0.32)


@_thing("low", 0.28, 0.4, 1.5)
def _chair(pen: Pen, rng: Random) -> None:
    wood = rng.choice([near(rng, 0.05, 0.55, 0.5), _vivid(rng, 0.4)])
    for u, low in ((0.08, 1.0), (0.3, 0.88), (0.72, 0.88), (0.88, 1.0)):
        pen.rect(times(wood, 0.75), u, 0.5, u + 0.1, low)
    pen.rect(times(wood, 0.85), 0.08, 0, 0.2, 0.6)
    for v in (0.02, 0.2):
        pen.rect(wood, 0.14, v, 0.62, v + 0.11)
    pen.rect(times(wood, 0.85), 0.56, 0, 0.66, 0.5)
    pen.poly(wood, (0.08, 0.62), (0.2, 0.48), (0.84, 0.48), (1, 0.62))


@_thing("low", 0.28, 0.42, 0.9)
def _cup(pen: Pen, rng: Random) -> None:
    glaze = rng.choice([_vivid(rng, 0.5), _vivid(rng, 0.5), _pale(rng)])
    pen.ring(times(glaze, 0.8), 0.09, 0.6, 0.3, 1.0, 0.8)
    pen.poly(glaze, (0, 0.16), (0.78, 0.16), (0.7, 0.92), (0.6, 1), (0.18, 1), (0.08, 0.92))
    pen.oval(times(glaze, 1.1), 0, 0.04, 0.78, 0.3)
    pen.oval(near(rng, 0.07, 0.6, 0.3), 0.08, 0.09, 0.7, 0.26, edge=False)


@_thing("low", 0.25, 0.36, 1.5)
def _flower(pen: Pen, rng: Random) -> None:
    petal, stem, turn = _vivid(rng, 0.9), near(rng, 0.33, 0.6, 0.45), rng.random()
    pen.line(stem, 0.09, (0.5, 0.4), (0.5, 1))
    pen.poly(stem, (0.5, 0.9), (0.2, 0.68), (0.12, 0.8))
    pen.poly(stem, (0.5, 0.84), (0.8, 0.62), (0.88, 0.74))
    for k in range(6):
        a = math.pi * (k + turn) / 3
        u, v = 0.5 + 0.31 * math.cos(a), 0.32 + 0.2 * math.sin(a)
        pen.oval(petal, u - 0.19, v - 0.125, u + 0.19, v + 0.125)
    pen.oval(rng.choice([(245, 200, 60), (110, 70, 40)]), 0.32, 0.2, 0.68, 0.44)


@_thing("low", 0.46, 0.66, 0.9)
def _umbrella(pen: Pen, rng: Random) -> None:
    cloth, other = _vivid(rng, 0.8), rng.choice([_pale(rng), _pale(rng), _vivid(rng)])
    pen.line((70, 60, 55), 0.05, (0.5, 0.05), (0.5, 0.9), (0.56, 0.98), (0.64, 0.94))
    pen.pie(cloth, 0, 0.04, 1, 1.0, 180, 360)
    pen.pie(other, 0.2, 0.04, 0.8, 1.0, 180, 360)
    pen.pie(cloth, 0.38, 0.04, 0.62, 1.0, 180, 360)


@_thing("high", 0.24, 0.38)
def _star(pen: Pen, rng: Random) -> None:
    glow, turn = near(rng, rng.choice([0.13, 0.16, 0.6]), 0.45, 1.0), rng.uniform(-0.3, 0.3)
    angles = [(math.pi * k / 5 + turn, 0.5 if k % 2 == 0 else 0.21) for k in range(10)]
    pen.poly(glow, *((0.5 + r * math.sin(a), 0.5 - r * math.cos(a)) for a, r in angles))


@_thing("any", 0.28, 0.44, 1.15)
def _window(pen: Pen, rng: Random) -> None:
    frame = rng.choice([_pale(rng), near(rng, 0.07, 0.5, 0.5)])
    glass = near(rng, rng.choice([0.12, 0.56, 0.66]), 0.4, 0.8)
    pen.rect(frame, 0, 0, 1, 0.92)
    for u in (0.1, 0.54):
        for v in (0.08, 0.48):
            pen.rect(glass, u, v, u + 0.36, v + 0.35)
    pen.line((245, 250, 255), 0.04, (0.16, 0.3), (0.32, 0.14))
    pen.rect(times(frame, 0.85), -0.06, 0.92, 1.06, 1)


@_thing("low", 0.3, 0.46, 0.7)
def _book(pen: Pen, rng: Random) -> None:
    cover = _vivid(rng, 0.62)
    pen.poly(cover, (0, 0.16), (0.5, 0.26), (1, 0.16), (1, 0.92), (0.5, 1), (0, 0.92))
    page = ((0, 0.18), (0.25, 0.02), (0.45, 0.08), (0.45, 0.8), (0.25, 0.76), (0, 0.92))
    for side in (-1, 1):
        pen.poly((245, 240, 225), *((0.5 + side * u, v) for u, v in page))
        for v in (0.22, 0.38, 0.54):
            pen.line((150, 150, 155), 0.03, (0.5 + side * 0.1, v + 0.06), (0.5 + side * 0.38, v))


@_thing("high", 0.28, 0.4, 1.5)
def _kite(pen: Pen, rng: Random) -> None:
    cloth, other = _vivid(rng, 0.15), _vivid(rng, 0.95)
    pen.line((240, 240, 240), 0.03, (0.5, 0.6), (0.62, 0.74), (0.42, 0.86), (0.55, 1.0))
    for u, v in ((0.58, 0.72), (0.46, 0.86)):
        pen.poly(other, (u - 0.12, v - 0.05), (u + 0.12, v + 0.05), (u + 0.12, v - 0.05), (u - 0.12, v + 0.05))
    for a, b, c in (((0.5, 0), (0, 0.25), cloth), ((0.5, 0), (1, 0.25), other)):
        pen.poly(c, a, b, (0.5, 0.25))
    pen.poly(other, (0, 0.25), (0.5, 0.25), (0.5, 0.62))
    pen.poly(cloth, (1, 0.25), (0.5, 0.25), (0.5, 0.62))


@_thing("any", 0.24, 0.38)
def _clock(pen: Pen, rng: Random) -> None:
    pen.oval(_vivid(rng, 0.02), 0, 0, 1, 1)
    pen.oval((248, 246, 238), 0.13, 0.13, 0.87, 0.87)
    for length, width in ((0.2, 0.08), (0.31, 0.05)):
        a = rng.random() * 2 * math.pi
        pen.line((25, 25, 30), width, (0.5, 0.5), (0.5 + length * math.sin(a), 0.5 - length * math.cos(a)))
    for u, v in ((0.5, 0.18), (0.5, 0.82), (0.18, 0.5), (0.82, 0.5)):
        pen.oval((25, 25, 30), u - 0.04, v - 0.04, u + 0.04, v + 0.04, edge=False)


@_thing("low", 0.6, 0.9, 0.34)
def _train(pen: Pen, rng: Random) -> None:
    body = _vivid(rng, 0.98)
    for u0, u1, coat in ((0.0, 0.3, _vivid(rng, 0.35)), (0.33, 0.63, _vivid(rng, 0.12)), (0.66, 0.9, body)):
        pen.rect(coat, u0, 0.12, u1, 0.8)
        for u in (u0 + 0.04, u0 + 0.15):
            pen.rect((225, 235, 245), u, 0.24, u + 0.08, 0.48)
        for u in (u0 + 0.03, u1 - 0.1):
            pen.oval((30, 30, 34), u, 0.7, u + 0.08, 1)
    pen.poly(body, (0.9, 0.3), (0.96, 0.34), (1, 0.8), (0.9, 0.8))
    pen.rect(times(body, 0.6), 0.8, -0.1, 0.86, 0.12)


@_thing("high", 0.28, 0.42, 1.4)
def _balloon(pen: Pen, rng: Random) -> None:
    cloth, other = _vivid(rng, 0.0), _vivid(rng, 0.14)
    for u in (0.3, 0.7):
        pen.line((90, 70, 50), 0.03, (u, 0.62), (0.5 + (u - 0.5) * 0.6, 0.86))
    pen.poly(cloth, (0.06, 0.48), (0.94, 0.48), (0.66, 0.72), (0.34, 0.72))
    pen.oval(cloth, 0, 0, 1, 0.68)
    pen.oval(other, 0.2, 0, 0.8, 0.68)
    pen.oval(cloth, 0.38, 0, 0.62, 0.68)
    pen.rect((150, 105, 60), 0.36, 0.85, 0.64, 1)


@_thing("low", 0.26, 0.4, 0.95)
def _mushroom(pen: Pen, rng: Random) -> None:
    cap, dot = _vivid(rng, 0.0), _pale(rng)
    pen.poly(near(rng, 0.1, 0.15, 0.92), (0.36, 0.45), (0.64, 0.45), (0.72, 1), (0.28, 1))
    pen.pie(cap, 0, 0, 1, 1.1, 180, 360)
    for u, v, r in ((0.3, 0.36, 0.09), (0.55, 0.2, 0.1), (0.75, 0.4, 0.08)):
        pen.oval(dot, u - r, v - r, u + r, v + r, edge=False)


@_thing("low", 0.4, 0.6, 0.65)
def _tent(pen: Pen, rng: Random) -> None:
    cloth = _vivid(rng, 0.22)
    pen.poly(times(cloth, 0.7), (0.4, 0), (0.72, 0.1), (1, 1), (0.72, 1))
    pen.poly(cloth, (0.4, 0), (0, 1), (0.74, 1))
    pen.poly((40, 36, 40), (0.4, 0.25), (0.26, 1), (0.52, 1))


@_thing("any", 0.28, 0.42, 1.5)
def _flag(pen: Pen, rng: Random) -> None:
    bands = [_vivid(rng, 0.6), _pale(rng), _vivid(rng, 0.98)]
    pen.line((95, 85, 80), 0.08, (0.08, 0), (0.08, 1))
    for k, cloth in enumerate(bands):
        v = 0.04 + 0.15 * k
        pen.poly(cloth, (0.12, v), (0.4, v + 0.05), (0.7, v - 0.03), (1, v + 0.03), (1, v + 0.18), (0.7, v + 0.12),
                 (0.4, v + 0.2), (0.12, v + 0.15))  # fmt: skip
