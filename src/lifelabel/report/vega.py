"""Figures as Vega-Lite specifications: how they look, the JavaScript that draws them, and their files.

Text from run folders is untrusted. In a specification it is data, never a part of an expression or the name of a field.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

from lifelabel.errors import UserError
from lifelabel.utils.files import atomic_write
from lifelabel.utils.text import printable

__all__ = ["SUFFIXES", "Control", "Figure", "bundle", "chart_text", "config", "slug", "write_figure", "write_spec"]

SUFFIXES = (".svg", ".pdf", ".png")
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


def chart_text(text: object, width: int) -> str:
    """Untrusted text for a chart: printable, and at most `width` characters.

    >>> chart_text("a very long name", 8)
    'a very …'
    """
    short = printable(text)
    return short if len(short) <= width else short[: width - 1] + "…"


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


@functools.cache
def bundle() -> str:
    """The JavaScript of Vega, Vega-Lite and vega-embed with their licences, for a `<script>` element."""
    licences = (resources.files("lifelabel.report") / "templates" / "vega-licences.txt").read_text(encoding="utf-8")
    return f"/*\n{licences}*/\n" + _converter().javascript_bundle().replace("</script", "<\\/script")


def write_figure(figure: Figure, folder: Path) -> list[str]:
    """Write the files of a figure as SVG, PDF and PNG into a folder. Returns their names."""
    names = []
    for suffix, values in figure.static.items():
        spec = {
            **figure.spec,
            "params": _with_values(figure.spec.get("params", ()), values),
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


def _with_values(params: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**param, **({"value": values[param["name"]]} if param["name"] in values else {})} for param in params]


def _converter() -> ModuleType:
    try:
        import vl_convert
    except ImportError:
        raise UserError("the report needs the package vl-convert-python: pip install vl-convert-python") from None
    return vl_convert
