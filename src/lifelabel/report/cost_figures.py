"""Figures of mAP over the megabytes that methods store: of one table for the report, and of a leaderboard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lifelabel.metrics.over_tasks import PAPER, Convention
from lifelabel.report.tables import Row
from lifelabel.report.vega import (
    COLOURS,
    GRAY,
    POINT,
    Figure,
    calculate,
    chart_names,
    chart_spec,
    chart_text,
    method_styles,
    rounded,
    tooltip,
)

_LABEL_GAP = 14
"""Pixels from one text to the next."""
_SMALL = 0.1
"""MB up to which the axis of stored bytes is linear, so that it has a place for 0."""
_WIDTH, _PADDING = 640, 12
"""Pixels of a panel of the leaderboard, and before 0 and after the end of the axis of stored bytes."""
_LETTER, _TEXT_OFFSET = 6.2, 14
"""Pixels of an average letter, and from a point to its text."""
_KINDS = ("stores no image", "stores images", "upper bound, trained on all tasks at once")
_STORES_NONE, _STORES, _JOINT = range(3)


def cost(rows: Sequence[Row], convention: Convention = PAPER) -> Figure | None:
    """mAP over what a method stores in addition to its network."""
    rows = [row for row in rows if row.runs]
    points = _points(rows, convention)
    if len(points) < 2:
        return None
    frame = _Frame.around(points)
    places = _spread([point["v"] for point in points], frame.low, frame.high, frame.height)
    half = frame.share(max(point["x"] for point in points)) / 2
    for point, place in zip(points, places, strict=True):
        point["place"] = place
        point["right"] = int(frame.share(point["x"]) <= half)  # the text is left of a point near the right border
    x, y = frame.channels()
    mean = {**y, "field": "v", "title": _title(convention)}
    styles = method_styles([row.joint for row in rows], [point["m"] for point in points])
    style = {channel: {**styles[channel], "legend": None} for channel in ("color", "shape")}
    text = {
        "type": "text", "baseline": "middle", "limit": {"expr": "0.45 * width"},
        "dx": {"expr": "datum.right ? 16 : -16"}, "align": {"expr": "datum.right ? 'left' : 'right'"},
    }  # fmt: skip
    tip = tooltip(
        name="method", x=("stored (MB)", ",.4~g"), v=("mean mAP (%)", ".2f"), l=("lowest (%)", ".2f"),
        h=("highest (%)", ".2f"), n="runs",
    )  # fmt: skip
    spec = chart_spec(
        frame.height,
        points,
        {"methods": chart_names(row.name for row in rows)},
        transform=calculate(name="methods[datum.m]"),
        encoding={"x": x},
        layer=[
            {
                "mark": {"type": "rule", "strokeWidth": 0.7, "x2Offset": {"expr": "datum.right ? 13 : -13"}},
                "encoding": {"y": mean, "x2": {"field": "x"}, "y2": {"field": "place"}},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"y": {**y, "field": "l"}, "y2": {"field": "h"}, "color": style["color"]},
            },
            {"mark": {**POINT, "size": 80}, "encoding": {"y": mean, **style, "tooltip": tip}},
            {"mark": text, "encoding": {"y": {**y, "field": "place"}, "text": {"field": "name"}}},
        ],
    )
    names = [chart_text(rows[point["m"]].name, 60) for point in points]
    each = ", ".join(f"{name} {p['x']:g} MB and {p['v']:.1f}" for name, p in zip(names, points, strict=True))
    note = "Points are means over the runs; vertical lines reach from the lowest to the highest run."
    return Figure("cost", "mAP and stored bytes", f"mAP (%) over stored megabytes: {each}.", spec, note=note)


def leaderboard_spec(panels: Mapping[str, Sequence[Row]], convention: Convention = PAPER) -> dict[str, Any] | None:
    """The specification of the picture of a leaderboard: a panel for each stream, by its name. None: there is no run.

    Methods that store images differ from the others in shape and colour. Upper bounds are horizontal lines.
    """
    drawn = [_panel(name, [row for row in rows if row.runs], convention) for name, rows in panels.items()]
    found = [panel for panel in drawn if panel]
    return {"vconcat": found, "spacing": 28} if found else None


def _panel(name: str, rows: Sequence[Row], convention: Convention) -> dict[str, Any] | None:
    points = _points(rows, convention)
    if not points:
        return None
    for point in points:
        row = rows[point["m"]]
        stores = (row.stat("stored_images").mean or 0) > 0
        point["kind"] = _KINDS[_JOINT if row.joint else _STORES if stores else _STORES_NONE]
        point["name"] = chart_text(row.name, 30) + (f" {point['v']:.1f}" if row.joint else "")
    frame = _Frame.around(points, 1.2)
    _place_texts(points, frame)
    x, y = frame.channels()
    mean = {**y, "field": "v", "title": _title(convention)}
    kind = {"field": "kind", "type": "nominal", "legend": {"title": None, "symbolOpacity": 1}}
    color = {**kind, "scale": {"domain": [*_KINDS], "range": [COLOURS[0], COLOURS[1], GRAY]}}
    shape = {**kind, "scale": {"domain": [*_KINDS], "range": ["circle", "square", "stroke"]}}
    bounds = [point for point in points if _is_bound(point)]
    others = [point for point in points if not _is_bound(point)]
    sides = [([point for point in others if point["right"] == right], right) for right in (0, 1)]
    line = {"type": "rule", "strokeWidth": 2}
    layers = [_layer(bounds, {**line, "strokeDash": [8, 4]}, y=mean, color=color)]
    for side, right in sides:
        to_text = {**line, "strokeWidth": 0.7, "x2Offset": 11 if right else -11}
        layers.append(_layer(side, to_text, x=x, y=mean, x2={"field": "x"}, y2={"field": "place"}))
    layers.append(_layer(others, line, x=x, y={**y, "field": "l"}, y2={"field": "h"}, color=color))
    for look in ({"stroke": "white", "strokeWidth": 3, "strokeJoin": "round"}, {}):  # a border: lines may cross a text
        text = {"type": "text", "baseline": "middle", **look}
        place = {"y": {**y, "field": "place"}, "text": {"field": "name"}}
        for side, right in sides:
            toward = {"dx": _TEXT_OFFSET, "align": "left"} if right else {"dx": -_TEXT_OFFSET, "align": "right"}
            layers.append(_layer(side, {**text, **toward}, x=x, **place))
        layers.append(_layer(bounds, {**text, "x": _WIDTH - 4, "align": "right"}, **place))
    mark = {"type": "point", "filled": True, "size": 80, "opacity": 0.9, "stroke": "white", "strokeWidth": 1}
    layers.append(_layer(others, mark, x=x, y=mean, color=color, shape=shape))
    return {"title": chart_text(name, 60), "width": _WIDTH, "height": frame.height, "layer": layers}


def _is_bound(point: Mapping[str, Any]) -> bool:
    return point["kind"] == _KINDS[_JOINT]


def _layer(points: Sequence[Mapping[str, Any]], mark: dict[str, Any], **encoding: Any) -> dict[str, Any]:
    return {"data": {"values": points}, "mark": mark, "encoding": encoding}


def _title(convention: Convention) -> str:
    return f"mAP, {convention.head} (%)"


def _points(rows: Sequence[Row], convention: Convention) -> list[dict[str, Any]]:
    """Number, stored MB, mean, lowest and highest mAP, and number of the runs of each row that has them."""
    points: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        scores = [score for run in row.runs if (score := run.figures()[convention.score("mAP")]) is not None]
        stored = row.stats["stored_bytes"].mean
        if scores and stored is not None and stored >= 0:
            three = {"v": sum(scores) / len(scores), "l": min(scores), "h": max(scores)}
            point = {"m": number, "x": float(f"{stored / 1e6:.4g}"), "n": len(scores)}
            points.append(point | {name: rounded(value, 2) for name, value in three.items()})
    return points


@dataclass(frozen=True)
class _Frame:
    """The ranges of a chart: mAP from `low` to `high` on `height` pixels, and stored MB from 0 to `most`."""

    low: float
    high: float
    height: int
    most: float
    ticks: tuple[float, ...]

    @staticmethod
    def around(points: Sequence[Mapping[str, Any]], room: float = 0) -> _Frame:
        """The ranges of some points. The axis of MB ends at a power of ten, or at `room` times the largest value."""
        low, high = min(point["l"] for point in points), max(point["h"] for point in points)
        margin = max(0.1 * (high - low), 1)
        largest = max(point["x"] for point in points)
        powers = range(-1, max(0, math.ceil(math.log10(max(largest, 1)))) + 1)
        ticks = [0, *(10.0**power for power in powers)]
        most = max(room * largest, 1) if room else max(ticks[-1], largest)
        height = max(320, _LABEL_GAP * (len(points) + 2))
        return _Frame(low - margin, high + margin, height, most, tuple(tick for tick in ticks if tick <= most))

    def channels(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The channel x of the field `x`, and the channel y."""
        scale = {"type": "symlog", "constant": _SMALL, "domain": [0, self.most], "nice": False, "padding": _PADDING}
        x = {
            "field": "x", "type": "quantitative", "title": "stored in addition to the network (MB)", "scale": scale,
            "axis": {"values": [*self.ticks], "format": ",.2~f", "grid": False},
        }  # fmt: skip
        domain = [rounded(self.low, 2), rounded(self.high, 2)]
        return x, {"type": "quantitative", "scale": {"domain": domain, "nice": False}}

    def share(self, megabytes: float) -> float:
        """The place on the axis of MB, from 0 to 1."""
        return math.log1p(megabytes / _SMALL) / math.log1p(self.most / _SMALL)

    def x(self, megabytes: float) -> float:
        """The place in pixels, in a chart of the width of a leaderboard."""
        return _PADDING + (_WIDTH - 2 * _PADDING) * self.share(megabytes)

    def y(self, score: float) -> float:
        return self.height * (self.high - score) / (self.high - self.low)

    def score(self, y: float) -> float:
        return self.high - y * (self.high - self.low) / self.height


_Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""


def _place_texts(points: Sequence[dict[str, Any]], frame: _Frame) -> None:
    """Set the place of the text of each point, `place` and `right`: near it, and not over a mark or another text."""
    taken: list[_Box] = []
    for point in points:
        x, y = frame.x(point["x"]), frame.y(point["v"])
        if _is_bound(point):
            taken.append((0, y - 2, _WIDTH, y + 2))
        else:
            taken += [(x - 6, y - 6, x + 6, y + 6), (x - 2, frame.y(point["h"]), x + 2, frame.y(point["l"]))]
    offsets = sorted(range(-frame.height, frame.height, 2), key=abs)
    for point in sorted(points, key=lambda point: (not _is_bound(point), -point["v"])):
        y, free = frame.y(point["v"]), None
        for offset in offsets:
            boxes = {right: _text_box(point, frame, y + offset, right) for right in (1, 0)}
            free = next((right for right, box in boxes.items() if _is_free(box, taken, frame)), None)
            if free is not None:
                taken.append(boxes[free])
                break
        point["place"] = rounded(frame.score(y + offset if free is not None else y), 3)
        point["right"] = 1 if free is None else free


def _text_box(point: Mapping[str, Any], frame: _Frame, y: float, right: int) -> _Box:
    length = _LETTER * len(point["name"])
    if _is_bound(point):
        return _WIDTH - 4 - length, y - 6, _WIDTH - 4, y + 6
    start = frame.x(point["x"]) + (_TEXT_OFFSET if right else -_TEXT_OFFSET - length)
    return start, y - 6, start + length, y + 6


def _is_free(box: _Box, taken: Sequence[_Box], frame: _Frame) -> bool:
    left, top, right, bottom = box
    inside = left >= 0 and top >= 0 and right <= _WIDTH and bottom <= frame.height
    return inside and not any(left < b[2] and b[0] < right and top < b[3] and b[1] < bottom for b in taken)


def _spread(values: Sequence[float], low: float, high: float, height: int) -> list[float]:
    """Places for the texts of points, near them and far enough from each other to be read."""
    gap = _LABEL_GAP * (high - low) / height
    order = sorted(range(len(values)), key=lambda number: values[number])
    places = [values[number] for number in order]
    for n in range(1, len(places)):
        places[n] = max(places[n], places[n - 1] + gap)
    top = high - gap / 2
    for n in reversed(range(len(places))):
        places[n] = min(places[n], top)
        top = places[n] - gap
    return [round(place, 3) for _, place in sorted(zip(order, places, strict=True))]
