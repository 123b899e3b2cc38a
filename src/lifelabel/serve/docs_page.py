"""The page that documents the API, from its description in openapi.json. It loads nothing from other sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_PREDICT = "curl -F files=@photo.jpg -F files=@other.jpg 'http://127.0.0.1:8000/predict?top=5'"
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>API of lifelabel</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="page.css">
</head>
<body>
<header><h1>API of lifelabel</h1><nav><a href="./">Labels</a> <a href="openapi.json">openapi.json</a></nav></header>
<main class="docs">
{calls}
</main>
</body>
</html>
"""


def docs_page(schema: Mapping[str, Any]) -> str:
    """HTML of the calls in an OpenAPI schema: what each does, its parameters and its answers."""
    paths = schema["paths"].items()
    calls = (_call(path, method, about) for path, methods in paths for method, about in methods.items())
    return _PAGE.format(calls="\n".join(calls))


def _call(path: str, method: str, about: Mapping[str, Any]) -> str:
    example = _PREDICT if path == "/predict" else f"curl http://127.0.0.1:8000{path}"
    return "\n".join([
        f"<section><h2><code>{method.upper()} {escape(path)}</code></h2>",
        *(f"<p>{escape(text)}</p>" for text in about.get("description", "").split("\n\n")),
        f"<pre><code>{escape(example)}</code></pre>",
        *_table("Parameters", ((each["name"], each.get("description", "")) for each in about.get("parameters", ()))),
        *_table("Answers", ((status, answer["description"]) for status, answer in about["responses"].items())),
        "</section>",
    ])  # fmt: skip


def _table(title: str, rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    lines = [f"<tr><th scope='row'><code>{escape(name)}</code></th><td>{escape(text)}</td></tr>" for name, text in rows]
    if lines:
        yield f"<table><caption>{title}</caption>{''.join(lines)}</table>"
