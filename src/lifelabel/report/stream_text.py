"""The description of a stream as text: a summary for the terminal, and report.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lifelabel.report.text_tables import rich_grid
from lifelabel.utils.markdown import escape, grid
from lifelabel.utils.text import counted, printable, task_cell

TERMINAL_WIDTH = 100
_MAX_TERMINAL_TASKS = 24
_MAX_BAD_IMAGES = 50
"""Bad images in report.md. stream.json has all of them."""

_EXPLANATION = (
    "A training image counts once for each task that it belongs to. A special image has only labels of its own task. "
    "A mixed image has labels of other tasks too, which are hidden. P(C_i|C_j) is the share of the images with C_j "
    "that have C_i too."
)


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def listed(names: Iterable[object], width: int) -> str:
    """As many names as fit into `width` characters, and the number of all names if some are left out.

    >>> listed(["person", "bicycle", "car"], 40), listed(["person", "bicycle", "car"], 16)
    ('person, bicycle, car', 'person, … (3)')
    """
    texts = [printable(name) for name in names]
    if len(complete := ", ".join(texts)) <= width:
        return complete
    rest = f", … ({len(texts)})"
    short = ""
    for text in texts:
        longer = f"{short}, {text}" if short else text
        if len(longer) + len(rest) > width:
            break
        short = longer
    return short + rest if short else texts[0][: width - 1] + "…"


def _task_names(description: dict[str, Any]) -> list[str]:
    return [task.get("name", "") for task in description["tasks"]]


def _task_table(description: dict[str, Any], width: int) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table of tasks, with the sum as the last row. Class names get `width` characters."""
    tasks = description["tasks"]
    known, in_paper = tasks[0]["special"] is not None, tasks[0]["paper"] is not None
    last = {"test_cumulative": tasks[-1]["test_cumulative"]}
    last |= {key: sum(task[key] for task in tasks) for key in ("train", "test_new")}
    last |= {key: sum(task[key] for task in tasks) if known else None for key in ("special", "mixed")}
    last["paper"] = [sum(task["paper"][k] for task in tasks) for k in (0, 1)] if in_paper else None
    names = [*(listed(task["classes"], width) for task in tasks), counted(len(description["classes"]), "classes")]
    rows, cells = [], _task_names(description)
    for task, classes in zip([*tasks, last], names, strict=True):
        row = [task_cell(task["task"], cells) if task is not last else "sum", classes, _count(task["train"])]
        row += [_pair([task["special"], task["mixed"]])] if known or in_paper else []
        row += [_pair(task["paper"])] if in_paper else []
        rows.append([*row, _count(task["test_new"]), _count(task["test_cumulative"])])
    heads = ["task", "classes", "training", *["special / mixed"] * (known or in_paper), *["in the paper"] * in_paper]
    return [*heads, "new test", "all test"], rows


def _pair(counts: Sequence[int | None]) -> str:
    return "–" if None in counts else " / ".join(map(_count, counts))


def _label_lines(description: dict[str, Any]) -> list[str]:
    """Labels per image, and the share of hidden labels."""
    per_image, hidden = description["labels_per_image"], description["hidden"]
    true, visible, test = (
        "–" if per_image[key] is None else f"{per_image[key]:.2f}" for key in ("true", "visible", "test")
    )
    lines = [f"labels per image: training {true} true, {visible} visible; test {test}"]
    if per_image["true"] is None:
        return [*lines, "hidden labels: not known (training images have only the labels of their own task)"]
    share = f"{_percent(hidden['labels'])} of the labels, in {_percent(hidden['images'])} of the training rows"
    return [*lines, f"hidden labels: {share}"]


def _pair_table(description: dict[str, Any], most: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the strongest co-occurrences."""
    names, rows = _task_names(description), []
    for pair in description["cooccurrence"]["strongest"][:most]:
        tasks = ", ".join(task_cell(task, names) for task in pair["tasks"])
        figures = [f"{pair['probability']:.2f}", f"{pair['prior']:.2f}", f"{pair['images']:,}", tasks]
        rows.append([listed([pair["class"]], 24), listed([pair["given"]], 24), *figures])
    return ["C_i", "given C_j", "P(C_i|C_j)", "P(C_i)", "images", "tasks i, j"], rows


def terminal(description: dict[str, Any]) -> Group:
    """The summary for a terminal of TERMINAL_WIDTH columns. report.md has the complete lists."""
    rules = ", ".join(f"{printable(key)}: {_short_rule(value)}" for key, value in description["rules"].items())
    parts: list[RenderableType] = [Text(printable(description["name"]), style="bold")]
    parts += [f"sha256 {description['sha256']}", *([rules] if rules else [])]
    parts += ["", _table(*_split_table(description), left=1), "", *_label_lines(description)]
    parts += ["", _table(*_fitting_tasks(description), left=2), "", *_extremes(description)]
    found = description["cooccurrence"]
    if found["strongest"]:
        pairs = _table(*_pair_table(description, 5), left=2)
        parts += ["", f"strongest co-occurrence, from {found['labels']}", pairs]
    parts += ["", *_bad_lines(description)]
    parts += [Text(f"problem: {printable(line)}", style="yellow") for line in description["problems"]]
    return Group(*(Text(part) if isinstance(part, str) else part for part in parts))  # a text may look like markup


def _fitting_tasks(description: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table of tasks, not wider than the terminal. If there are many tasks, it has only the first and the last."""
    heads, rows = _task_table(description, 1000)
    columns = list(zip(heads, *rows, strict=True))
    used = sum(max(map(len, column)) + 2 for index, column in enumerate(columns) if index != 1)
    heads, rows = _task_table(description, max(TERMINAL_WIDTH - used, 20))
    half = _MAX_TERMINAL_TASKS // 2
    if len(rows) > 2 * half + 1:
        rows = [*rows[:half], ["…"] * len(heads), *rows[-half - 1 :]]
    return heads, rows


def _short_rule(value: Any) -> str:
    """The value of a rule, cut to about 60 characters."""
    if isinstance(value, dict):
        return f"{{{listed(value, 30)}}}"
    return f"[{listed(value, 30)}]" if isinstance(value, list) else listed([value], 60)


def _split_table(description: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    train, test = description["splits"]["train"], description["splits"]["test"]
    keys = {"images": "images", "rows": "rows", "missing": "missing files"}
    return ["", "training", "test"], [[head, _count(train[key]), _count(test[key])] for key, head in keys.items()]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> Table:
    return rich_grid(heads, rows, left, box=box.SIMPLE_HEAD, show_edge=False)


def _extremes(description: dict[str, Any]) -> list[str]:
    """One line for the classes with the most visible training images, and one for those with the fewest."""
    ranked = sorted(description["classes"], key=lambda c: -c["visible"])
    texts = [f"{listed([c['name']], 24)} {c['visible']:,}" for c in ranked]
    most, fewest = ", ".join(texts[:5]), ", ".join(texts[-5:])
    return [f"classes with the most visible images: {most}", f"classes with the fewest visible images: {fewest}"]


def _bad_lines(description: dict[str, Any]) -> list[str]:
    """The number of bad images and their reasons, and of images with equal pixels."""
    bad, equal = description["bad"], description["equal"] or []
    if bad is None:
        return ["the images were not opened: --decode lists those that cannot be used and those with equal pixels"]
    lines = [f"opened {counted(bad['opened'], 'images')}, {len(bad['images']):,} of them cannot be used"]
    lines += [f"{count:,} × {printable(reason)}" for reason, count in bad["reasons"].items()]
    across = sum(len({image["split"] for image in images}) > 1 for images in equal)
    for count, where in ((across, "both in training and test"), (len(equal) - across, "in one of them")):
        if count:
            first = equal[0 if where.startswith("both") else across]
            there = counted(count, "images are")
            lines.append(f"{there} there under several names, {where}: {_same(first)}{', …' * (count > 1)}")
    return lines


def _same(images: Sequence[dict[str, str]]) -> str:
    """The names of images with equal pixels.

    >>> _same([{"split": "train", "image": "a.jpg"}, {"split": "test", "image": "b.jpg"}])
    'a.jpg (train) = b.jpg (test)'
    """
    return " = ".join(f"{printable(image['image'])} ({image['split']})" for image in images)


def markdown(description: dict[str, Any], figures: Sequence[str] = ()) -> str:
    """The text of report.md. `figures` are the names of image files in the same folder."""
    lines = [f"# Stream {escape(description['name'])}", "", f"sha256 `{description['sha256']}`", ""]
    lines += [f"- {escape(key)}: {escape(value)}" for key, value in description["rules"].items()]
    lines += ["", *grid(*_split_table(description), left=1), ""]
    lines += [f"- {escape(line)}" for line in [*_label_lines(description), *_bad_lines(description)]]
    lines += ["", "## Tasks", "", *grid(*_task_table(description, 1000), left=2), "", _EXPLANATION]
    names = _task_names(description)
    classes = [
        [c["name"], task_cell(c["task"], names), _count(c["visible"]), _count(c["true"]), _count(c["test"])]
        for c in description["classes"]
    ]
    heads = ["class", "task", "training, visible", "training, true", "test"]
    lines += ["", "## Images of each class", "", *grid(heads, classes, left=1)]
    found = description["cooccurrence"]
    origin = f"From {found['labels']} ({counted(found['images'], 'images')})."
    lines += ["", "## Strongest co-occurrence", "", origin, ""]
    lines += grid(*_pair_table(description), left=2)
    bad, equal = description["bad"] or {"images": []}, description["equal"] or []
    texts = [f"{image['split']}: {image['image']}: {image['reason']}" for image in bad["images"]]
    lines += _section("Images that cannot be used", texts, _MAX_BAD_IMAGES)
    lines += _section("Images with equal pixels", list(map(_same, equal)), _MAX_BAD_IMAGES)
    lines += _section("Problems", description["problems"])
    if figures:
        lines += ["", "## Figures", "", *(f"![{name}]({name})\n" for name in figures)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(title: str, lines: Sequence[str], most: int | None = None) -> list[str]:
    """A heading and a list of at most so many lines; nothing without a line."""
    more = [f"- … (all {len(lines):,} are in stream.json)"] if most and len(lines) > most else []
    return ["", f"## {title}", "", *(f"- {escape(line)}" for line in lines[:most]), *more] if lines else []
