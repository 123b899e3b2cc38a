"""Figures as Vega-Lite specifications: how they look, their common parts, the JavaScript that draws them, their files.

Text from run folders is untrusted. In a specification it is data, never a part of an expression or the name of a field.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from lifelabel.errors import UserError
from lifelabel.utils.files import atomic_write
from lifelabel.utils.text import printable, task_cell

SUFFIXES = (".svg", ".pdf", ".png")
COLOURS = ("#2f7ed8", "#d95f02", "#1b9e77", "#cc3d4a", "#8f63c9", "#9a7420", "#0f94b8", "#d4559b")
GRAY = "#858b96"
"""Like each of the colours, it has a contrast of at least 3 with white and with the background of the dark page."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
LINE = {"type": "line", "strokeWidth": 1.8}
POINT = {"type": "point", "filled": True, "size": 55, "opacity": 1}
TASK_LABEL = "taskCells[datum.value - 1]"
"""The label of a task on an axis, with the parameter `taskCells`."""
_NEEDED = {"vl_convert": "vl-convert-python", "jinja2": "Jinja2"}
"""Modules that the report needs, and their packages. The tables do not need them."""
_LABEL_GAP = 6
"""Pixels between the numbers of a horizontal axis. Where there is less, on a phone, every second number is drawn."""
_DASHES = ([1, 0], [6, 2], [2, 2])
_JOINT_DASH = [8, 4]
_FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"


@dataclass(frozen=True)
class Control:
    """An input of the page that sets a parameter of a figure."""

    signal: str
    kind: str
    """`slider`, `choice` (one of several options) or `checks` (any of several options)."""
    label: str
    values: tuple[Any, ...]
    """Of a slider: lowest, highest, step. Otherwise the options: pairs of a value of the parameter and its text."""
    default: Any
    """Of checks: the list of the values of all options."""
    play: bool = False
    """Whether a slider has a button that moves it step by step."""


@dataclass(frozen=True)
class Figure:
    """A chart: its specification without colours of text and background, its inputs, and its files."""

    name: str
    """The id in the page, and the beginning of the names of the files."""
    title: str
    alt: str
    """What is drawn, and its main figures, for readers who cannot see it."""
    spec: dict[str, Any]
    """With its data, and a parameter for each control. Its width is that of its container."""
    controls: tuple[Control, ...] = ()
    note: str = ""
    static: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    """The files: the end of the name, and the values of parameters that are not the default, or another `width`."""
    width: int = 640
    """The width of the files in pixels."""
    max_width: int = 1100
    """The largest width in the page. Heat maps with rows and columns of the same kind are not much wider than high."""


def slug(text: str) -> str:
    """A name for files and ids. Different texts have different names.

    >>> slug("agcn"), slug("AGCN (λ1 0.5)")
    ('agcn', 'agcn-1-0-5-6f3e3f')
    """
    name = re.sub("[^a-z0-9]+", "-", text.lower())[:40].strip("-")
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:6]
    return name if name and name == text else f"{name}-{digest}".lstrip("-")


def config(dark: bool) -> dict[str, Any]:
    """The look of a figure on a light or a dark page."""
    text, faint, grid = ("#d6d9de", "#8b929c", "#363b43") if dark else ("#2b2f36", "#767c86", "#e3e5e9")
    axis = {
        "labelColor": text, "titleColor": text, "domainColor": faint, "tickColor": faint, "gridColor": grid,
        "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 150, "titlePadding": 8,
    }  # fmt: skip
    legend = {
        "labelColor": text, "titleColor": text, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal",
        "labelLimit": 300, "symbolSize": 70, "symbolStrokeWidth": 1.5, "orient": "bottom",
    }  # fmt: skip
    title = {"color": text, "fontSize": 12, "fontWeight": "normal", "anchor": "start", "limit": 0}
    return {
        "aria": False, "background": "transparent", "font": _FONT, "padding": 6, "axis": axis, "legend": legend,
        "title": title, "view": {"stroke": None}, "text": {"color": text, "fontSize": 11}, "rule": {"color": faint},
    }  # fmt: skip


# Parts of specifications


def chart_spec(
    height: int, values: Sequence[Mapping[str, Any]] | None, params: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """A specification as wide as its container.

    `values` are its data; None if each of its layers has its own. `params` has the value of each parameter, or
    `{"expr": ...}`.
    """
    data = {} if values is None else {"data": {"values": values}}
    listed = [{"name": name, **(each if isinstance(each, dict) else {"value": each})} for name, each in params.items()]
    return {"width": "container", "height": height, **data, "params": listed, **more}


def calculate(**expressions: str) -> list[dict[str, str]]:
    """The transforms that add fields.

    >>> calculate(share="datum.p / 1000")
    [{'calculate': 'datum.p / 1000', 'as': 'share'}]
    """
    return [{"calculate": expression, "as": name} for name, expression in expressions.items()]


def tooltip(**fields: str | tuple[str, str]) -> list[dict[str, str]]:
    """The channel of a text that is shown at a mark: for each field its title, or its title and its number format.

    >>> tooltip(v=("mAP (%)", ".2f"))
    [{'field': 'v', 'title': 'mAP (%)', 'format': '.2f'}]
    """
    lines = [{"field": name, "title": text if isinstance(text, str) else text[0]} for name, text in fields.items()]
    for line, text in zip(lines, fields.values(), strict=True):
        if isinstance(text, tuple):
            line["format"] = text[1]
    return lines


def percent_channel(field: str, text: str, **axis: Any) -> dict[str, Any]:
    """The channel of a field of percentages with this title."""
    return {
        "field": field, "type": "quantitative", "title": text, "scale": {"domain": [0, 100]},
        "axis": {"labelSeparation": _LABEL_GAP, **axis},
    }  # fmt: skip


def names_channel(field: str, axis: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The channel of numbers of classes, which are drawn with their names: the parameter `names`."""
    look = {"labelExpr": "names[datum.value]", "labelFontSize": 10, "ticks": False, **(axis or {})}
    return {"field": field, "type": "ordinal", "title": None, "axis": look, **more}


def title(expression: str) -> dict[str, Any]:
    """The line above a chart: the text that a Vega expression gives, cut at the width of the chart."""
    return {"text": {"expr": expression}, "limit": {"expr": "width + 40"}}


def task_cells(names: Sequence[str], tasks: int) -> list[str]:
    """The name of each of so many tasks, or its number: the parameter `taskCells`, for `TASK_LABEL`."""
    return [chart_text(task_cell(number, names), 20) for number in range(1, tasks + 1)]


def method_styles(joint: Sequence[bool], numbers: Sequence[int], label: str = "methods[datum.value]") -> dict[str, Any]:
    """The channels color, strokeDash and shape of the field `m`, the number of a method. A joint one is gray, dashed.

    `numbers` are the methods in the legend, and `label` is the expression for their text there.
    """
    rounds = {number: number // len(COLOURS) for number in numbers}
    ranges = {
        "color": [GRAY if joint[n] else COLOURS[n % len(COLOURS)] for n in numbers],
        "strokeDash": [_JOINT_DASH if joint[n] else _DASHES[rounds[n] % len(_DASHES)] for n in numbers],
        "shape": [SHAPES[(n + rounds[n]) % len(SHAPES)] for n in numbers],
    }
    # from the width of the container: `width` is larger before the axes are laid out, and the legend would be cut off
    columns = "((containerSize()[0] || width) < 480 ? 1 : (containerSize()[0] || width) < 860 ? 2 : 3)"
    legend = {
        "title": None, "labelExpr": label, "labelLimit": {"expr": f"width / {columns} - 30"}, "symbolOpacity": 1,
        "columns": {"expr": columns},
    }  # fmt: skip
    return {
        channel: {"field": "m", "type": "nominal", "scale": {"domain": [*numbers], "range": values}, "legend": legend}
        for channel, values in ranges.items()
    }


def chart_text(text: object, width: int) -> str:
    """Untrusted text for a chart: printable, and at most `width` characters.

    >>> chart_text("a very long name", 8)
    'a very …'
    """
    short = printable(text)
    return short if len(short) <= width else short[: width - 1] + "…"


def chart_names(names: Iterable[object]) -> list[str]:
    """Names of classes or methods as an array of a figure. Where they are drawn, they are found by their number."""
    return [chart_text(name, 48) for name in names]


def rounded(value: float | None, digits: int) -> float | None:
    """A number for a chart; None if it is unknown or not finite."""
    return None if value is None or not math.isfinite(value) else round(float(value), digits)


def thousandths(values: np.ndarray) -> list[int | None]:
    """Fractions as whole thousandths, row by row: fewer digits in the page. None: not finite.

    >>> thousandths(np.array([0.1234, np.nan, 1]))
    [123, None, 1000]
    """
    flat = np.asarray(values, dtype=float).ravel().tolist()
    return [round(1000 * min(max(value, -9), 9)) if math.isfinite(value) else None for value in flat]


# The page and the files


@functools.cache
def bundle() -> str:
    """The JavaScript of Vega, Vega-Lite and vega-embed with their licences, for a `<script>` element."""
    licences = (resources.files("lifelabel.report") / "templates" / "vega-licences.txt").read_text(encoding="utf-8")
    return f"/*\n{licences}*/\n" + _converter().javascript_bundle().replace("</script", "<\\/script")


def write_figure(figure: Figure, folder: Path) -> list[str]:
    """Write the files of a figure as SVG, PDF and PNG into a folder. Returns their names."""
    names, params = [], figure.spec["params"]
    for suffix, values in figure.static.items():
        spec = {
            **figure.spec,
            "params": [{**each, "value": values[each["name"]]} if each["name"] in values else each for each in params],
            "width": values.get("width", figure.width),
            "autosize": {"type": "fit-x", "contains": "padding"},
        }
        names += write_spec(spec, folder, f"{figure.name}{suffix}")
    return names


def write_spec(spec: Mapping[str, Any], folder: Path, name: str, suffixes: Sequence[str] = SUFFIXES) -> list[str]:
    """Draw a specification on a white background, and write it in the formats of `suffixes`. Returns their names."""
    convert = _converter()
    full = {**spec, "background": "white"}
    svg = convert.vegalite_to_svg(full, config=config(dark=False), allowed_base_urls=[])
    makers = {
        ".svg": svg.encode,
        ".pdf": lambda: convert.svg_to_pdf(svg),
        ".png": lambda: convert.svg_to_png(svg, scale=2),
    }
    for suffix in suffixes:
        with atomic_write(folder / f"{name}{suffix}") as file:
            file.write(makers[suffix]())
    return [f"{name}{suffix}" for suffix in suffixes]


def chart_obstacle() -> str:
    """Why there can be no report and no charts; empty if there can."""
    missing = [package for module, package in _NEEDED.items() if not find_spec(module)]
    if missing:
        return f"needs other packages: pip install {' '.join(missing)}"
    with suppress(ImportError):  # there are no such limits on Windows
        import resource

        if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            # the JavaScript engine of vl-convert reserves many addresses, and ends the process without them
            return "needs an address space without a limit: ulimit -v unlimited"
    return ""


def _converter() -> ModuleType:
    try:
        import vl_convert
    except ImportError:
        raise UserError("the report needs the package vl-convert-python: pip install vl-convert-python") from None
    return vl_convert
