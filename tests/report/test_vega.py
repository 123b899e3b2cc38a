"""The look and the files of figures."""

import json
import re
import socket

import pytest
from PIL import Image
from report.untrusted import HOSTILE, PRINTABLE

from lifelabel.errors import UserError
from lifelabel.report.vega import Figure, bundle, chart_text, config, slug, write_figure

SPEC = {
    "params": [{"name": "number", "value": 1}, {"name": "word", "value": "<b>&"}],
    "width": "container",
    "height": 100,
    "data": {"values": [{"x": 1}]},
    "mark": "text",
    "encoding": {"text": {"value": {"expr": "word + ' ' + number"}}},
}
FIGURE = Figure("a", "A", "text", SPEC, static={"-1": {}, "-2": {"number": 2}}, width=300)


def test_the_files_of_a_figure(tmp_path):
    names = write_figure(FIGURE, tmp_path)
    assert names == [f"a-{number}.{kind}" for number in (1, 2) for kind in ("svg", "pdf", "png")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    for number in (1, 2):
        svg = (tmp_path / f"a-{number}.svg").read_text(encoding="utf-8")
        assert f"&lt;b&gt;&amp; {number}" in svg
        assert 'width="300"' in svg
        assert (tmp_path / f"a-{number}.pdf").read_bytes().startswith(b"%PDF-")
        with Image.open(tmp_path / f"a-{number}.png") as image:
            assert image.width == 600  # at scale 2
            assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert SPEC["params"][0]["value"] == 1  # the figure itself is not changed


def test_no_address_is_opened(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a.json"
        with pytest.raises(ValueError):
            write_figure(Figure("a", "A", "", {**SPEC, "data": {"url": url}}), tmp_path)
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_figure_that_cannot_be_written(tmp_path):
    with pytest.raises(UserError, match=r"^cannot write .*/none/a-1\.svg: .*; choose another folder$"):
        write_figure(FIGURE, tmp_path / "none")


def test_the_package_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    message = r"^the report needs the package vl-convert-python: pip install vl-convert-python$"
    bundle.cache_clear()
    with pytest.raises(UserError, match=message):
        bundle()
    with pytest.raises(UserError, match=message):
        write_figure(FIGURE, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_bundle_is_one_script():
    script = bundle()
    licences, code = script.removeprefix("/*\n").split("*/\n", 1)
    assert "Interactive Data Lab" in licences and "Mike Bostock" in licences
    assert "vegaEmbed" in code
    assert "</script" not in script.lower()
    assert len(script) < 1_500_000


def test_light_and_dark():
    light, dark = config(dark=False), config(dark=True)
    assert json.loads(json.dumps(light)) == light
    assert light.keys() == dark.keys()
    for part, key in (("axis", "labelColor"), ("title", "color"), ("text", "color"), ("legend", "labelColor")):
        assert contrast(light[part][key], "#ffffff") > 7
        assert contrast(dark[part][key], "#16181d") > 7
    assert light["aria"] is dark["aria"] is False


def contrast(one, other):
    """The contrast of two colours by WCAG."""
    values = []
    for colour in (one, other):
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        values.append(sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05)
    return max(values) / min(values)


def test_text_is_printable_and_cut():
    assert chart_text(HOSTILE, 1000) == PRINTABLE
    assert chart_text("abcdef", 6) == "abcdef"
    assert chart_text("abcdefg", 6) == "abcde…"


def test_names_of_files_are_plain_and_different():
    texts = ["agcn", "AGCN", "agcn ", "a/../b", "a b", "a-b", HOSTILE, "x" * 300, "x" * 301, "λ", "µ", ""]
    names = [slug(text) for text in texts]
    assert len(set(names)) == len(texts)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]{0,60}", name) for name in names)
    assert names[0] == "agcn"
