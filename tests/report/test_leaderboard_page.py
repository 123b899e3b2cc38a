"""The page and the picture of a leaderboard, from run folders written by hand."""

import csv
import dataclasses
import io
import re
from pathlib import Path

import pytest
from PIL import Image
from report.run_folders import forgetting, make_run, scores, table_of
from report.untrusted import HOSTILE, PRINTABLE, render

from lifelabel.metrics.over_tasks import CONVENTIONS
from lifelabel.report.cost_figures import leaderboard_spec
from lifelabel.report.leaderboard_page import StreamBoard, board_table, ranking_summary, write_page
from lifelabel.report.tables import Failure, ResultTable, Row
from lifelabel.report.vega import write_spec

MAPS = {
    "tuned": {"er": (50, 52), "prs": (48, 48), "agcn": (60, 62), "lwf": (), "multi-task": (90, 92)},
    "plain": {"er": (30, 32), "prs": (38, 40), "agcn": (20,), "lwf": (), "multi-task": (80, 80)},
}
STORED = {"er": (200, 800_000), "prs": (200, 900_000), "agcn": (0, 1_600_000)}


def make_board(folder, name="scenes", maps=MAPS, failures=()):
    tables = {}
    for fidelity, methods in maps.items():
        rows = []
        for method, values in methods.items():
            joint = method == "multi-task"
            more = {} if joint else forgetting(0.125)
            runs = [
                make_run(
                    folder / f"{fidelity}-{method}-{seed}", method, seed, mAP=value / 100, fidelity=fidelity,
                    joint=joint, stored=STORED.get(method, (0, 0)), environment={"image_size": 64}, **more,
                )
                for seed, value in enumerate(values)
            ]  # fmt: skip
            rows.append(Row((method,), tuple(runs), 2, joint))
        tables[fidelity] = ResultTable(name, ("method",), tuple(rows), tuple(failures))
    return StreamBoard(name, tables)


@pytest.fixture
def board(tmp_path):
    return make_board(tmp_path / "runs")


def test_the_table_by_hand(board):
    ranked = board_table(board.with_runs())
    heads = [
        "rank", "method", "tuned mAP, final ↑", "CF1, final ↑", "OF1, final ↑", "forgetting ↓", "plain mAP, final ↑",
        "stored images", "stored MB", "seconds", "n", "px",
    ]  # fmt: skip
    assert ranked.heads() == heads and ranked.left == 2
    # CF1 is a half and OF1 a quarter of mAP; the runs take 10 and 11 seconds; AGCN has one plain run of two
    two, forgets, px = "200", "12.50 ± 0.00", "64"
    assert ranked.texts() == [
        ["1", "agcn", "61.00 ± 1.41", "30.50 ± 0.71", "15.25 ± 0.35", forgets, "20.00", "0", "1.6", "10", "2, 1/2", px],
        ["2", "er", "51.00 ± 1.41", "25.50 ± 0.71", "12.75 ± 0.35", forgets, "31.00 ± 1.41", two, "0.8", "10", "2", px],
        [
            "3",
            "prs",
            "48.00 ± 0.00",
            "24.00 ± 0.00",
            "12.00 ± 0.00",
            forgets,
            "39.00 ± 1.41",
            two,
            "0.9",
            "10",
            "2",
            px,
        ],
    ]
    bold = {(cells[1], heads[n]) for cells in ranked.texts() for n, cell in enumerate(cells) if type(cell) is not str}
    assert bold == {
        ("agcn", "tuned mAP, final ↑"),
        ("agcn", "CF1, final ↑"),
        ("agcn", "OF1, final ↑"),
        ("prs", "plain mAP, final ↑"),
    }
    (joint,) = board_table(board.with_runs(), joint=True).texts()
    assert joint[:7] == ["–", "multi-task", "91.00 ± 1.41", "45.50 ± 0.71", "22.75 ± 0.35", "–", "80.00 ± 0.00"]
    assert not any(type(cell) is not str for cell in joint)
    assert board_table(board).texts()[-1][:3] == ["–", "lwf", "–"]
    assert board.ranked() == {"agcn": 1, "er": 2, "prs": 3, "lwf": None}


def test_equal_means_share_a_rank(tmp_path):
    maps = {"tuned": {"er": (50, 50), "prs": (50, 50), "agcn": (40, 40)}}
    assert make_board(tmp_path, maps=maps).ranked() == {"er": 1, "prs": 1, "agcn": 3}


def test_rank_bold_rankings_and_picture_follow_the_convention(tmp_path):
    """After task 1 the mAP of all runs is 80: averages are 70, 69 and 65. AGCN has the highest mean over test sets."""
    runs = {
        name: make_run(
            tmp_path / name, name, mAP=mAP, cumulative_mean=scores(mean), relative_forgetting=scores(-2.0),
            **forgetting(0.125),
        )
        for name, mAP, mean in (("er", 0.6, 0.3), ("prs", 0.58, 0.2), ("agcn", 0.5, 0.4))
    }  # fmt: skip
    rows = tuple(Row((name,), (run,), 1) for name, run in runs.items())
    for name, ranks, forgets in (
        ("paper", {"er": 1, "prs": 2, "agcn": 3}, "12.50"),
        ("authors", {"agcn": 1, "er": 2, "prs": 3}, "-200.00"),
        ("average", {"er": 1, "prs": 2, "agcn": 3}, None),
    ):
        convention = CONVENTIONS[name]
        board = StreamBoard("scenes", {"tuned": ResultTable("", ("method",), rows, convention=convention)})
        assert board.ranked() == ranks
        write_page([board], tmp_path, "")
        page = (tmp_path / "leaderboard.md").read_text(encoding="utf-8")
        head, _, first, *_ = table_of(page)
        assert head[2:5] == [f"{metric}, {convention.head} ↑" for metric in ("tuned mAP", "CF1", "OF1")]
        value = f"{runs[first[1]].figures()[convention.score('mAP')]:.2f}"
        assert first[:3] == ["1", next(iter(ranks)), f"**{value}**"]
        assert ("forgetting" in " ".join(head)) == (forgets is not None) and (forgets is None or first[5] == forgets)
        assert convention.note in page
        difference = runs["agcn"].figures()[convention.score("mAP")] - runs["er"].figures()[convention.score("mAP")]
        assert (
            f"({difference:+.2f}, one seed)" in next(line for line in table_of(page) if line[0] == "agcn above er")[2]
        )
        (panel,) = leaderboard_spec({"scenes": rows}, convention)["vconcat"]
        assert points_of(panel)["er"]["v"] == pytest.approx(runs["er"].figures()[convention.score("mAP")])


def test_the_page(board, tmp_path):
    failed = Failure("other, tuned, er, seed 1", Path("x"), "task 2: the loss is | nan <b>")
    other = make_board(tmp_path / "other", "other", {"tuned": {"er": (70,)}, "plain": {"er": ()}}, [failed])
    tables = dict(other.tables, plain=dataclasses.replace(other.tables["plain"], missing=("other, plain, er, seed 0",)))
    other = StreamBoard("other", tables)
    assert write_page([board, other], tmp_path, "lifelabel leaderboard", ["leaderboard.svg"]) == [
        "leaderboard.md", "leaderboard.csv",
    ]  # fmt: skip
    page = (tmp_path / "leaderboard.md").read_text(encoding="utf-8")
    assert page.startswith("# Leaderboard\n\n    lifelabel leaderboard\n\n![")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == [
        "scenes", "other", "Published rankings", "Runs that are not finished (2)",
    ]  # fmt: skip
    lines = table_of(page)
    assert ["1", "agcn", "**61.00 ± 1.41**", "**30.50 ± 0.71**"] in [line[:4] for line in lines]
    assert "\n15 of 20 runs. Not run: lwf.\n" in page and "\n1 of 4 runs. Missing: plain, er, seed 0.\n" in page
    assert "tuned: Stream scenes, seeds 0, 1; test-cpu, 2 threads" in page and "fingerprint f00df00d" in page
    assert "plain: no run is finished." in page
    assert "- other, tuned, er, seed 1: task 2: the loss is \\| nan &lt;b>\n" in page
    # 61 - 48 ± 1; 20 of one seed - 39; 48 - 51 ± 1; 39 - 31 ± sqrt(2)
    assert ["agcn above prs", "34.11 / 28.81 (Split-COCO), 41.12 / 37.93 (Split-WIDE)", "**holds (+13.00 ± 1.00)**",
            "no verdict (-19.00, one seed)", "–", "–"] in lines  # fmt: skip
    cells = next(line for line in lines if line[0] == "prs above er")
    assert cells[2:4] == ["**does not hold (-3.00 ± 1.00)**", "**holds (+8.00 ± 1.41)**"]
    assert "\\1" not in page and "lwf above" not in page.partition("### ")[2]


def test_the_summary_of_rankings(board):
    groups = ranking_summary([board])
    by_title = {title: name for name, titles in groups.items() for title in titles}
    assert by_title["prs above er"] == "Hold at least once, and are reversed at least once"
    assert by_title["agcn above prs"] == "Hold at least once, and are reversed nowhere"
    assert by_title["er above agcn"] == "Do not hold: reversed at least once, and hold nowhere"
    assert by_title["rebll above krt"] == "Not measured, because a method was not run"
    assert groups["Not measured, because a method was not run"].count("prs above er") == 0
    assert len(by_title) == sum(map(len, groups.values()))


def test_the_csv_file_has_all_figures_of_all_rows(board, tmp_path):
    write_page([board], tmp_path, "")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "leaderboard.csv").read_text(encoding="utf-8"))))
    assert len(rows) == 10
    found = {(row["fidelity"], row["method"]): row for row in rows}
    agcn = found["plain", "agcn"]
    assert (agcn["stream"], agcn["rank"], agcn["runs"], agcn["planned"]) == ("scenes", "3", "1", "2")
    assert (agcn["mAP_mean"], agcn["CF1_mean"], agcn["forgetting_OF1_mean"]) == ("20.0", "10.0", "3.125")
    assert (found["tuned", "multi-task"]["rank"], found["tuned", "lwf"]["mAP_mean"]) == ("", "")


# The picture


def texts(svg):
    """The texts of an SVG file with their places."""
    pattern = r'<text text-anchor="(\w+)" transform="translate\(([-\d.]+),([-\d.]+)\)"[^>]*>([^<]*)</text>'
    return re.findall(pattern, svg)


def test_the_picture_has_all_methods_and_streams(board, tmp_path):
    pytest.importorskip("vl_convert", reason="vl-convert-python is not installed")
    other = make_board(tmp_path / "other", "<b>$other", {"tuned": {"er": (70,)}})
    spec = leaderboard_spec({each.name: each.first.rows for each in (board, other)})
    assert write_spec(spec, tmp_path, "leaderboard", (".svg", ".png")) == ["leaderboard.svg", "leaderboard.png"]
    svg = (tmp_path / "leaderboard.svg").read_text(encoding="utf-8")
    shown = [text for *_, text in texts(svg)]
    assert {"er", "prs", "agcn", "multi-task 91.0", "scenes", "&lt;b&gt;$other", "stores images"} <= {*shown}
    assert "lwf" not in shown  # it has no run
    with Image.open(tmp_path / "leaderboard.png") as image:
        image.load()
        assert image.width > 1200
    assert leaderboard_spec({"scenes": board.first.rows[3:4]}) is None


def points_of(spec):
    """The points of a panel by name, with their kind."""
    layers = [layer["data"]["values"] for layer in spec["layer"] if layer["mark"]["type"] in ("point", "rule")]
    return {point["name"]: point for values in layers for point in values}


def test_methods_that_store_images_and_upper_bounds_are_distinguished(board):
    (panel,) = leaderboard_spec({"scenes": board.first.rows})["vconcat"]
    kinds = {name: point["kind"] for name, point in points_of(panel).items()}
    assert kinds == {
        "er": "stores images", "prs": "stores images", "agcn": "stores no image",
        "multi-task 91.0": "upper bound, trained on all tasks at once",
    }  # fmt: skip
    layer = next(layer for layer in panel["layer"] if layer["mark"]["type"] == "point")
    assert {point["name"] for point in layer["data"]["values"]} == {"er", "prs", "agcn"}
    for channel in ("color", "shape"):
        assert len(set(layer["encoding"][channel]["scale"]["range"])) == 3


def test_texts_overlap_neither_each_other_nor_points(tmp_path):
    """Twenty methods with nearly the same scores and sizes, and two upper bounds that are level."""
    pytest.importorskip("vl_convert", reason="vl-convert-python is not installed")
    rows = []
    for number in range(22):
        joint = number > 19
        run = make_run(
            tmp_path / str(number), "er", mAP=0.9 if joint else 0.5 + number % 7 / 500, joint=joint,
            stored=(number % 2, 0 if joint else [0, 800_000, 900_000][number % 3]),
        )  # fmt: skip
        rows.append(Row((f"method-{number:02}",), (run,), 1, joint))
    write_spec(leaderboard_spec({"scenes": rows}), tmp_path, "picture", (".svg",))
    drawn = {t for t in texts((tmp_path / "picture.svg").read_text(encoding="utf-8")) if t[3].startswith("method-")}
    assert len(drawn) == 22
    boxes = []
    for anchor, x, y, text in drawn:
        left, width = float(x), 5.6 * len(text)
        left -= width if anchor == "end" else 0
        boxes.append((left, float(y), left + width))
    for n, (left, y, right) in enumerate(boxes):
        assert left >= 0
        for other_left, other_y, other_right in boxes[:n]:
            assert right <= other_left or other_right <= left or abs(y - other_y) >= 11.5


def test_untrusted_names(tmp_path):
    failed = Failure(HOSTILE, Path("x"), HOSTILE)
    row = Row((HOSTILE,), (make_run(tmp_path / "run", "er"),), 1)
    board = StreamBoard(HOSTILE, {"tuned": ResultTable("", ("method",), (row,), (failed,))})
    write_page([board], tmp_path, f"lifelabel leaderboard {HOSTILE}")
    tags, lines = render((tmp_path / "leaderboard.md").read_text(encoding="utf-8"))
    assert not tags & {"img", "a", "script", "em", "del"}
    assert PRINTABLE in lines  # the heading of the stream, and the cell of the method
    assert f"{PRINTABLE}: {PRINTABLE}" in lines
    (panel,) = leaderboard_spec({board.name: board.first.rows})["vconcat"]
    assert panel["title"].startswith("$5_to_$10 |")
