"""The figures of a stream as people read them: a summary for the terminal, and a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lifelabel.errors import plain

TERMINAL_TASKS = 24
TERMINAL_WIDTH = 100
LISTED_IMAGES = 50

MEANINGS = (
    "A training image counts once for every task that shows it. Special images hold labels of their own task alone; "
    "mixed ones hold labels of other tasks too, which their task hides. P(C_i|C_j) is the share of the images with "
    "C_j that show C_i too."
)
PAIR_HEADS = ["C_i", "given C_j", "P(C_i|C_j)", "P(C_i)", "images", "tasks i, j"]


def number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def listed(names: Iterable[object], width: int) -> str:
    """As many names as fit into `width` characters, and how many more there are.

    >>> listed(["person", "bicycle", "car"], 40), listed(["person", "bicycle", "car"], 16)
    ('person, bicycle, car', 'person, … (3)')
    """
    texts = [plain(name) for name in names]
    if len(whole := ", ".join(texts)) <= width:
        return whole
    rest = f", … ({len(texts)})"
    shown = ""
    for text in texts:
        longer = f"{shown}, {text}" if shown else text
        if len(longer) + len(rest) > width:
            break
        shown = longer
    return shown + rest if shown else texts[0][: width - 1] + "…"


def task_table(description: dict[str, Any], width: int) -> tuple[list[str], list[list[str]]]:
    """Heads and rows, the sum last; columns without a figure are left out. `width` is for the class names."""
    tasks = description["tasks"]
    known, printed = tasks[0]["special"] is not None, tasks[0]["paper"] is not None
    last = {"task": "sum", "test_cumulative": tasks[-1]["test_cumulative"]}
    last |= {key: sum(task[key] for task in tasks) for key in ("train", "test_new")}
    last |= {key: sum(task[key] for task in tasks) if known else None for key in ("special", "mixed")}
    last["paper"] = [sum(task["paper"][k] for task in tasks) for k in (0, 1)] if printed else None
    names = [*(listed(task["classes"], width) for task in tasks), f"{len(description['classes']):,} classes"]
    rows = []
    for task, classes in zip([*tasks, last], names, strict=True):
        row = [str(task["task"]), classes, number(task["train"])]
        row += [_pair([task["special"], task["mixed"]])] if known or printed else []
        row += [_pair(task["paper"])] if printed else []
        rows.append([*row, number(task["test_new"]), number(task["test_cumulative"])])
    heads = ["task", "classes", "training", *["special / mixed"] * (known or printed), *["in the paper"] * printed]
    return [*heads, "new test", "all test"], rows


def _pair(counts: Sequence[int | None]) -> str:
    return "–" if None in counts else " / ".join(map(number, counts))


def label_lines(description: dict[str, Any]) -> list[str]:
    """What training images show and what is hidden of it, in words."""
    per_image, hidden = description["labels_per_image"], description["hidden"]
    true, visible, test = (
        "–" if per_image[key] is None else f"{per_image[key]:.2f}" for key in ("true", "visible", "test")
    )
    lines = [f"labels an image: training {true} true, {visible} visible; test {test}"]
    if per_image["true"] is None:
        return [*lines, "hidden labels: not known (training images carry the labels of their own task alone)"]
    share = f"{percent(hidden['labels'])} of the labels, in {percent(hidden['images'])} of the training rows"
    return [*lines, f"hidden labels: {share}"]


def pair_row(pair: dict[str, Any]) -> list[str]:
    tasks = ", ".join(map(str, pair["tasks"]))
    figures = [f"{pair['probability']:.2f}", f"{pair['prior']:.2f}", f"{pair['images']:,}", tasks]
    return [listed([pair["class"]], 24), listed([pair["given"]], 24), *figures]


def terminal(description: dict[str, Any]) -> Group:
    """The summary for a terminal of TERMINAL_WIDTH columns; report.md has what is cut short here."""
    lines = [Text(plain(description["name"]), style="bold"), Text(f"sha256 {description['sha256']}")]
    if description["rules"]:
        lines.append(Text(", ".join(f"{plain(k)}: {short_value(v)}" for k, v in description["rules"].items())))
    parts: list[RenderableType] = [*lines, Text(), _split_table(description), Text()]
    parts += [Text(line) for line in label_lines(description)]
    parts += [Text(), _table(*_fitting_tasks(description), left=2), Text()]
    parts += [Text(line) for line in _extremes(description)]
    found = description["cooccurrence"]
    if found["strongest"]:
        pairs = [pair_row(pair) for pair in found["strongest"][:5]]
        parts += [Text(), Text(f"strongest co-occurrence, from {found['labels']}"), _table(PAIR_HEADS, pairs, left=2)]
    parts += [Text(), *(Text(line) for line in bad_lines(description))]
    parts += [Text(f"problem: {plain(line)}", style="yellow") for line in description["problems"]]
    return Group(*parts)


def _fitting_tasks(description: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table of tasks, with class names in what room the figures leave, and without the middle of very many."""
    heads, rows = task_table(description, 1000)
    columns = list(zip(heads, *rows, strict=True))
    used = sum(max(map(len, column)) + 2 for place, column in enumerate(columns) if place != 1)
    heads, rows = task_table(description, max(TERMINAL_WIDTH - used, 20))
    half = TERMINAL_TASKS // 2
    if len(rows) > 2 * half + 1:
        rows = [*rows[:half], ["…"] * len(heads), *rows[-half - 1 :]]
    return heads, rows


def short_value(value: Any) -> str:
    """A rule's value in a word or two."""
    if isinstance(value, dict):
        return f"{{{listed(value, 30)}}}"
    return f"[{listed(value, 30)}]" if isinstance(value, list) else listed([value], 60)


def _split_table(description: dict[str, Any]) -> Table:
    train, test = description["splits"]["train"], description["splits"]["test"]
    keys = {"images": "images", "rows": "rows", "missing": "missing files"}
    return _table(["", "training", "test"], [[keys[k], number(train[k]), number(test[k])] for k in keys], left=1)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < left else "right", no_wrap=place >= left)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _extremes(description: dict[str, Any]) -> list[str]:
    """The classes with most and with fewest visible training images, a line each."""
    ranked = sorted(description["classes"], key=lambda c: -c["visible"])
    texts = [f"{listed([c['name']], 24)} {c['visible']:,}" for c in ranked]
    few = min(5, len(texts))
    return [f"most shown: {', '.join(texts[:few])}", f"least shown: {', '.join(texts[-few:])}"]


def bad_lines(description: dict[str, Any]) -> list[str]:
    """What opening every image found; nothing where they were not opened."""
    bad = description["bad"]
    if bad is None:
        return []
    lines = [f"opened {bad['opened']:,} images, {len(bad['images']):,} of them cannot be used"]
    return lines + [f"{count:,} × {plain(reason)}" for reason, count in bad["reasons"].items()]


def markdown(description: dict[str, Any], pictures: Sequence[str] = ()) -> str:
    """The whole report; `pictures` are file names beside it."""
    train, test = description["splits"]["train"], description["splits"]["test"]
    lines = [f"# Stream {_cell(description['name'])}", "", f"sha256 `{description['sha256']}`", ""]
    lines += [f"- {_cell(key)}: {_cell(value)}" for key, value in description["rules"].items()]
    keys = {"images": "images", "rows": "rows", "missing": "missing files"}
    lines += ["", *_grid(["", "training", "test"], [[keys[k], number(train[k]), number(test[k])] for k in keys], 1), ""]
    lines += [f"- {line}" for line in [*label_lines(description), *map(_cell, bad_lines(description))]]
    lines += ["", "## Tasks", "", *_grid(*task_table(description, 1000), 2), "", MEANINGS]
    classes = [
        [c["name"], str(c["task"]), number(c["visible"]), number(c["true"]), number(c["test"])]
        for c in description["classes"]
    ]
    heads = ["class", "task", "training, visible", "training, true", "test"]
    lines += ["", "## Images of each class", "", *_grid(heads, classes, 1)]
    found = description["cooccurrence"]
    lines += ["", "## Strongest co-occurrence", "", f"From {found['labels']} ({found['images']:,} images).", ""]
    lines += _grid(PAIR_HEADS, [pair_row(pair) for pair in found["strongest"]], 2)
    if description["bad"] and (images := description["bad"]["images"]):
        lines += ["", "## Images that cannot be used", ""]
        lines += [f"- {i['split']}: {_cell(i['image'])}: {_cell(i['reason'])}" for i in images[:LISTED_IMAGES]]
        lines += [f"- … (all {len(images):,} are in stream.json)"] * (len(images) > LISTED_IMAGES)
    if description["problems"]:
        lines += ["", "## Problems", "", *(f"- {_cell(line)}" for line in description["problems"])]
    if pictures:
        lines += ["", "## Pictures", "", *(f"![{name}]({name})\n" for name in pictures)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _cell(value: object) -> str:
    """Text that is no Markdown and no HTML, whatever it holds."""
    return plain(value).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("`", "'")


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> list[str]:
    lines = ["| " + " | ".join(map(_cell, heads)) + " |", "|" + "---|" * left + "---:|" * (len(heads) - left)]
    return lines + ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
