"""Figures of runs, from run folders written by hand: what a reader of the drawn figure sees, and the data in it."""

import json
import re

import numpy as np
import pytest
from report.run_folders import CLASSES, edit_json, runs_of_two_and_one_task, scores, write_matrices, write_run
from report.test_vega import contrast

from lifelabel.errors import UserError
from lifelabel.methods import METHODS
from lifelabel.report import cost_figures, matrix_figures, score_figures, vega
from lifelabel.report.matrix_figures import Change, changed_relations, strongest_relations
from lifelabel.report.tables import ResultTable
from lifelabel.report.vega import COLOURS, GRAY
from lifelabel.runs.finished import read_run

vl_convert = pytest.importorskip("vl_convert", reason="vl-convert-python is not installed")

OF_METHODS = (
    score_figures.class_ap, score_figures.precision_recall, score_figures.reliability,
    score_figures.false_positives,
)  # fmt: skip
OF_A_RUN = (
    matrix_figures.matrix, matrix_figures.label_graph, score_figures.forgetting, score_figures.class_changes,
)  # fmt: skip

MATRIX = np.array([[1, 0.5, 0.25, 0.2], [0.125, 1, 0.75, 0.04], [0.5, 0.625, 1, 0.04], [0.2, 0.04, 0.3, 1]])
TRUTH = np.full((4, 4), 0.5)
AP = {"sky": [0.9, 0.5], "boat": [0.4, 0.6], "sea": [None, 0.3], "tree": [None, None]}
"""The AP of each class after each task."""
HOSTILE = ["$5_to_$10", "<b>x</b>", "a\"b'c\\\x1b\u202e" + "x" * 300, "datum.x + '"]


def svg(figure, width=500, **values):
    """The figure as the page draws it after its inputs are set."""
    assert values.keys() <= {param["name"] for param in figure.spec["params"]}
    given = ({"value": values[param["name"]]} if param["name"] in values else {} for param in figure.spec["params"])
    params = [{**param, **value} for param, value in zip(figure.spec["params"], given, strict=True)]
    spec = {**figure.spec, "params": params, "width": width}
    return vl_convert.vegalite_to_svg(spec, config=vega.config(dark=False), allowed_base_urls=[])


def texts(drawn):
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn)


def marks(drawn, layer):
    """The number of marks in a layer."""
    group = re.search(rf'<g class="[^"]* {layer}_marks".*?</g>', drawn)
    return len(re.findall("<(?:path|line|text)", group[0])) if group else 0


def param(figure, name):
    return next(each["value"] for each in figure.spec["params"] if each["name"] == name)


def data(figure, *keys, **wanted):
    """The drawn values, or some of their fields, where the others are as wanted."""
    drawn = figure.spec.get("data") or figure.spec["layer"][0]["data"]
    values = [value for value in drawn["values"] if wanted.items() <= value.items()]
    return [tuple(value[key] for key in keys) for value in values] if keys else values


def write_details(folder, numbers=(1, 2), classes=2):
    """Details of a run of two tasks. The AP is that of AP; all pairs have the probabilities 0.055, 0.505 and 0.905."""
    (folder / "details").mkdir()
    for number in numbers:
        count = number * classes
        counts = np.zeros((number, 2, 100), np.int64)
        counts[:, 0, [5, 50, 90]] = 80, 15, 5
        counts[:, 1, [5, 50, 90]] = 20, 5, 15
        aps = [np.nan if pair[number - 1] is None else pair[number - 1] for pair in AP.values()][:count]
        arrays = {"ap": np.array(aps, np.float32), "counts": counts, "scores": np.zeros((3, count), np.float32)}
        if number == 2:
            precision = np.tile(np.linspace(1, 0.5, 101, dtype=np.float32), (count, 1))
            precision[1] = 0.25
            precision[3] = np.nan
            arrays |= {"precision": precision, "thresholds": precision}
        np.savez(folder / "details" / f"task-{number}.npz", **arrays)


def make_run(folder, label="agcn", stored=0, matrices=None, details=True, names=CLASSES, joint=False, **more):
    ap = {name: pair[1] for name, pair in zip(names, AP.values(), strict=True)}
    tasks = [list(names[:2]), list(names[2:])]
    by_task = {"mAP": [[0.25, 0.75]] if joint else [[0.8, None], [0.25, 0.75]]}
    environment = {"label": label, "footprint": {"images": 0, "bytes": stored}}
    errors = {"acm_error": {"all": 0.25, "intra": 0.5}} if matrices else {}
    more["more"] = {"tasks": tasks, "classes": list(names), "by_task": by_task}
    write_run(folder, environment=environment, joint=joint, ap=ap, **errors, **more)
    if matrices:
        np.savez(folder / "acm.npz", classes=np.array(names), **matrices)
    if details:
        write_details(folder, (2,) if joint else (1, 2))
    return read_run(folder)


FROZEN = {"task_1": MATRIX[:2, :2], "task_2": MATRIX, "truth": TRUTH}
CHANGED = {"task_1": np.array([[0.9, 0.25], [np.nan, 1]]), "task_2": MATRIX}


@pytest.fixture
def runs(tmp_path):
    """AGCN with two seeds and matrices, fine-tuning without details, multi-task."""
    return [
        make_run(tmp_path / "a1", seed=1, mAP=0.6, matrices=FROZEN, stored=2_000_000),
        make_run(tmp_path / "a0", seed=0, mAP=0.5, matrices=FROZEN, stored=2_000_000),
        make_run(tmp_path / "f", label="fine-tuning", method="fine-tuning", mAP=0.25, details=False),
        make_run(tmp_path / "j", label="multi-task", method="multi-task", mAP=0.9, joint=True),
    ]


def rows_of(runs):
    return ResultTable.from_runs(runs).rows


def all_figures(runs):
    rows = rows_of(runs)
    first = {row.name: row.first_run for row in rows}
    found = [score_figures.learning_curves(rows), cost_figures.cost(rows), *(make(first) for make in OF_METHODS)]
    found += [make(run, label) for label, run in first.items() for make in OF_A_RUN]
    return [figure for figure in found if figure]


# All figures


def test_every_figure_fits_its_inputs_and_files(runs):
    made = all_figures(runs)
    assert [figure.name for figure in made] == [
        "learning-curves", "cost", "class-ap", "precision-recall", "reliability", "false-positives", "matrix-agcn",
        "label-graph-agcn", "forgetting-agcn", "class-changes-agcn", "forgetting-fine-tuning",
    ]  # fmt: skip
    for figure in made:
        json.dumps(figure.spec, allow_nan=False)
        assert figure.alt.endswith(".")
        for control in figure.controls:
            assert param(figure, control.signal) == control.default
            if control.kind == "slider":
                assert control.values[0] <= control.default <= control.values[1]
            else:
                options = [value for value, _ in control.values]
                assert control.default == options if control.kind == "checks" else control.default in options
        for values in figure.static.values():
            assert values.keys() <= {"width", *(each["name"] for each in figure.spec["params"])}


def without_data(value):
    """A specification without data: without values, and without the values of parameters."""
    if isinstance(value, dict):
        return {k: without_data(v) for k, v in value.items() if k != "data" and not (k == "value" and "name" in value)}
    return [without_data(each) for each in value] if isinstance(value, list) else value


def test_hostile_names_are_data_only(tmp_path):
    """Names change the data of a specification alone, and are drawn as text."""
    made = {}
    for kind, names, label in (("plain", CLASSES, "agcn"), ("hostile", HOSTILE, "</script>' + alert(1) + '")):
        first, second = (
            make_run(tmp_path / f"{kind}{n}", names=names, label=f"{label}{n}", matrices=FROZEN) for n in (1, 2)
        )
        made[kind] = all_figures([first, second])
    for plain, hostile in zip(made["plain"], made["hostile"], strict=True):
        assert without_data(plain.spec) == without_data(hostile.spec)
        drawn = svg(hostile)
        assert "<b>" not in drawn and "script>" not in drawn.replace("/script&gt;", "") and "\x1b" not in drawn
        if hostile.name.startswith(("matrix", "label-graph", "class-ap")):
            assert {"$5_to_$10", "&lt;b&gt;x&lt;/b&gt;"} <= set(texts(drawn))


def test_every_method_has_its_own_style_with_contrast():
    joint = [name == "multi-task" for name in METHODS]
    style = vega.method_styles(joint, range(len(joint)))
    colours, dashes, shapes = (style[name]["scale"]["range"] for name in ("color", "strokeDash", "shape"))
    for others in (dashes, shapes):
        assert len(set(zip(colours, map(str, others), strict=True))) == len(METHODS)
    assert [colour == GRAY for colour in colours] == joint
    assert dashes.count(dashes[joint.index(True)]) == 1
    for colour in (*COLOURS, GRAY):
        assert contrast(colour, "#ffffff") > 3 and contrast(colour, "#16181d") > 3


def test_a_real_run(agcn_run, tmp_path):
    run = read_run(agcn_run)
    made = {re.sub("-agcn.*", "", figure.name): figure for figure in all_figures([run])}
    assert made.keys() == {
        "learning-curves", "class-ap", "precision-recall", "reliability", "false-positives", "matrix", "label-graph",
        "forgetting", "class-changes",
    }  # fmt: skip
    curve = dict(data(made["learning-curves"], "t", "v", s=0))
    expected = {record["task"]: 100 * record["seen"]["mAP"] for record in run.metrics["per_task"]}
    assert curve == pytest.approx(expected, abs=0.006)
    assert marks(svg(made["matrix"], view="matrix", width=900), "layer_0") == 20 * 19
    assert changed_relations(run) == (0, [])  # old entries are frozen
    strongest = strongest_relations(run)
    assert len(strongest) == 12 and strongest[0].p == (run.matrices["task_5"] - np.eye(20)).max()
    files = vega.write_figure(made["learning-curves"], tmp_path)
    assert len(files) == len(list(tmp_path.iterdir())) == 9
    (row,) = rows_of([run])
    assert row.name == "agcn (stream.train_images=60, stream.test_images=60)"
    assert row.stat("mAP").mean == pytest.approx(100 * run.metrics["final"]["mAP"])
    assert all(value is not None for value in run.figures().values())


def test_the_run_of_a_row_is_that_of_the_lowest_seed(runs):
    (row, *_) = rows_of(runs)
    assert [run.seed for run in row.runs] == [1, 0]
    assert row.first_run == runs[1]


def test_runs_without_data_have_no_figure(tmp_path):
    run = read_run(write_run(tmp_path / "a"))
    assert not any(make(run, "agcn") for make in OF_A_RUN) and not any(make({"agcn": run}) for make in OF_METHODS)
    assert strongest_relations(run) == [] and changed_relations(run) == (0, [])
    assert score_figures.learning_curves([]) is None


# Learning curves and cost


def test_learning_curves(runs):
    figure = score_figures.learning_curves(rows_of(runs))
    assert data(figure, "t", "v", "l", "h", "n", m=0, s=0) == [(1, 80, 80, 80, 2), (2, 55, 50, 60, 2)]
    assert data(figure, "v", m=0, t=2) == [(55,), (27.5,), (13.75,)]  # mAP, CF1, OF1
    assert data(figure, "v", m=2, s=0) == [(80,), (90,)]  # of the joint run on the same images
    assert "agcn 55.0, fine-tuning 25.0, multi-task 90.0" in figure.alt
    assert list(figure.static) == ["-mAP", "-CF1", "-OF1"]
    drawn = svg(figure)
    assert {"mAP of the classes seen so far (%)", "55.0  agcn", "90.0  multi-task"} <= set(texts(drawn))
    assert marks(drawn, "layer_2") == 6
    drawn = svg(figure, metric=1, shown=[0, 2])
    assert {"CF1 of the classes seen so far (%)", "27.5  agcn"} <= set(texts(drawn))
    assert marks(drawn, "layer_2") == 4


def test_a_curve_with_a_gap(tmp_path):
    folder = write_run(tmp_path / "a")
    records = json.loads((folder / "metrics.json").read_text())["per_task"]
    records[0]["seen"]["mAP"] = None
    edit_json(folder / "metrics.json", per_task=records)
    assert data(score_figures.learning_curves(rows_of([read_run(folder)])), "t", "v", s=0) == [(2, 50)]


def test_the_curve_of_a_run_that_extends_another_begins_later(tmp_path):
    folder = write_run(tmp_path / "a")
    records = [{"task": t, "seen": scores(0.5), "by_task": []} for t in (2, 3)]
    edit_json(folder / "metrics.json", tasks=[["a"], ["b"], ["c"]], per_task=records)
    assert data(score_figures.learning_curves(rows_of([read_run(folder)])), "t", s=0) == [(2,), (3,)]


def test_runs_with_different_numbers_of_tasks_have_no_common_curve(tmp_path):
    two, one = runs_of_two_and_one_task(tmp_path)
    with pytest.raises(UserError, match=r"^runs of 'agcn' have different numbers of tasks: report them separately$"):
        rows_of([two, one])
    edit_json(one.path / "environment.json", label="one task")
    figure = score_figures.learning_curves(rows_of([two, read_run(one.path)]))
    assert data(figure, "m", "t", s=0) == [(0, 1), (0, 2), (1, 1)]


def test_cost(runs):
    figure = cost_figures.cost(rows_of(runs))
    assert data(figure, "x", "v", "l", "h") == [(2, 55, 50, 60), (0, 25, 25, 25), (0, 90, 90, 90)]
    assert {"agcn", "fine-tuning", "multi-task", "0", "0.1", "10"} <= set(texts(svg(figure)))
    assert cost_figures.cost(rows_of(runs[:2])) is None  # one point says nothing


def test_the_texts_of_close_points_are_apart(tmp_path):
    made = [make_run(tmp_path / str(n), label=f"method {n}", mAP=0.5 + n / 10_000) for n in range(12)]
    made.append(make_run(tmp_path / "high", label="high", mAP=0.9))
    drawn = svg(cost_figures.cost(rows_of(made)))
    found = re.findall(r'<text[^>]*translate\([-\d.]+,([-\d.]+)\)"[^>]*>(?:method|high)', drawn)
    heights = sorted(float(y) for y in found)
    assert len(heights) == 13 and min(np.diff(heights)) > 13


# Matrices


def test_matrix(runs):
    figure = matrix_figures.matrix(runs[1], "agcn")
    assert list(figure.static) == ["-task-1", "-task-2", "-truth", "-error", "-beside-truth"]
    assert [control.signal for control in figure.controls] == ["task", "view"]
    assert "sea given boat 0.62" not in figure.alt  # of a pair, the direction with the higher P
    assert "boat given sea 0.75" in figure.alt
    (group,) = data(figure)
    assert group == {"from": 1, "to": 2, "size": 4, "v": [round(1000 * v) for v in MATRIX.ravel()]}
    drawn = svg(figure, view="matrix")
    assert [texts(drawn).count(name) for name in CLASSES] == [2] * len(CLASSES)
    assert marks(drawn, "layer_0") == 12  # without the diagonal
    assert (marks(drawn, "layer_1"), marks(drawn, "layer_2")) == (1, 1)  # the border of the tasks
    drawn = svg(figure, task=1, view="error")
    assert marks(drawn, "layer_0") == 2
    assert "agcn, after task 1: P(row | column) minus the true one" in texts(drawn)
    red, blue = (np.array(re.findall(r"\d+", fill), int) for fill in re.findall(r'd="[^"]*" fill="(rgb[^"]*)"', drawn))
    assert np.ptp(red) < 10  # 0.5 - 0.5: the middle of the scale
    assert blue[2] > blue[0] + 30  # 0.125 - 0.5


def test_the_true_matrix_is_beside_the_other_where_there_is_room(runs):
    figure = matrix_figures.matrix(runs[1], "agcn")
    drawn = svg(figure)
    assert "agcn, after task 2: P(row | column), and the true one on the right" in texts(drawn)
    assert [texts(drawn).count(name) for name in CLASSES] == [3] * len(CLASSES)  # rows, and columns twice
    assert (marks(drawn, "layer_0"), marks(drawn, "layer_1"), marks(drawn, "layer_2")) == (24, 2, 1)
    cells = re.findall(r'd="M([\d.]+),[^"]*" fill="(rgb[^"]*)"', drawn)
    left, right = (sorted(float(x) for x, _ in cells)[k] for k in (0, -1))
    true_cells = {fill for x, fill in cells if float(x) > (left + right) / 2}
    assert len(true_cells) == 1  # the true matrix is 0.5 everywhere
    narrow = svg(figure, width=300)
    assert marks(narrow, "layer_0") == 12 and "agcn, after task 2: P(row | column)" in texts(narrow)


def test_a_matrix_that_changes_and_has_gaps(tmp_path):
    run = make_run(tmp_path / "a", matrices=CHANGED)
    figure = matrix_figures.matrix(run, "agcn")
    second, first = data(figure)
    assert (second["from"], second["to"], second["size"]) == (2, 2, 4)
    assert first == {"from": 1, "to": 1, "size": 2, "v": [900, 250, None, 1000]}
    assert marks(svg(figure, task=1), "layer_0") == 1
    assert [control.signal for control in figure.controls] == ["task"]  # the truth is not known
    count, changes = changed_relations(run)
    assert count == len(changes)
    assert [(c.i, c.j, c.task) for c in changes if np.isfinite(c.before)] == [("sky", "boat", "task 2")]
    assert changes[0][3:] == (0.25, 0.5)
    assert changed_relations(run, 1) == (count, changes[:1])


def test_many_classes(tmp_path):
    count = 300
    folder = write_run(tmp_path / "a")
    names = [f"c{n}" for n in range(count)]
    edit_json(folder / "metrics.json", tasks=[names[:150], names[150:]])
    matrix = np.where(np.eye(count, dtype=bool), 1, 0.01)
    matrix[np.arange(0, 200, 2), np.arange(1, 200, 2)] = 0.5
    matrix[np.arange(100, 219), 299] = 0.9  # 120 classes have a stronger relation
    np.savez(folder / "acm.npz", task_1=matrix[:150, :150], task_2=matrix, classes=np.array(names))
    run = read_run(folder)
    figure = matrix_figures.matrix(run, "agcn")
    shown = param(figure, "names")
    assert shown == [*names[100:219], "c299"]
    assert "The 120 classes with the strongest relations, of 300" in figure.note
    assert list(figure.static) == ["-task-2"]
    graph = matrix_figures.label_graph(run, "agcn")
    assert param(graph, "names") == shown
    assert len(json.dumps(figure.spec)) < 100_000


def test_a_matrix_of_very_many_classes_is_read_in_part(tmp_path, monkeypatch):
    """1,200 classes, of which 1,000 are in memory. Only blocks of the file are read at a time."""
    monkeypatch.setattr("lifelabel.utils.arrays._BLOCK", 1 << 17)
    count = 1200
    folder, names = write_run(tmp_path / "a"), [f"c{n}" for n in range(count)]
    edit_json(folder / "metrics.json", tasks=[names[:600], names[600:]])
    matrix = np.where(np.eye(count, dtype=bool), 1, 0.01).astype(np.float32)
    matrix[:150] *= 0.5
    matrix[:, :150] *= 0.5  # of the other classes, which are equal, the first ones are kept
    matrix[3, 700], matrix[1150, 5], matrix[9, 9] = 0.9, 0.8, np.nan
    before = matrix[:600, :600].copy()
    before[3, 599] = 0.5
    np.savez_compressed(folder / "acm.npz", task_1=before, task_2=matrix, classes=np.array(names), truth=matrix)
    run = read_run(folder)
    kept = run.matrices["kept"]
    assert len(kept) == 1000 and {3, 5, 700, 1150} < {*kept.tolist()} and not {4, 1199} & {*kept.tolist()}
    for name in ("task_2", "truth"):
        assert np.array_equal(run.matrices[name], matrix[np.ix_(kept, kept)])
    assert np.array_equal(run.matrices["task_1"], before[np.ix_(kept[kept < 600], kept[kept < 600])])
    assert [(r.i, r.j) for r in strongest_relations(run, 2)] == [("c3", "c700"), ("c1150", "c5")]
    assert changed_relations(run) == (1, [Change("c3", "c599", "task 2", 0.5, pytest.approx(0.005))])
    assert "The 120 classes with the strongest relations, of 1200" in matrix_figures.matrix(run, "agcn").note


def test_label_graph(runs):
    figure = matrix_figures.label_graph(runs[1], "agcn")
    lines = {(line["i"], line["j"]): line for line in data(figure)}
    assert lines == {
        (0, 1): {"from": 1, "to": 2, "i": 0, "j": 1, "p": 500, "q": 125},
        (1, 2): {"from": 2, "to": 2, "i": 1, "j": 2, "p": 750, "q": 625},
        (2, 0): {"from": 2, "to": 2, "i": 2, "j": 0, "p": 500, "q": 250},
        (3, 2): {"from": 2, "to": 2, "i": 3, "j": 2, "p": 300, "q": 40},
        (0, 3): {"from": 2, "to": 2, "i": 0, "j": 3, "p": 200, "q": 200},
    }  # 0.04 is too weak
    for values, expected in (({"threshold": 0.05}, 5), ({"threshold": 0.5}, 3), ({"threshold": 0.05, "task": 1}, 1)):
        assert marks(svg(figure, **values), "layer_0") == expected
    drawn = svg(figure, task=1, threshold=0.8)
    assert {"sky", "boat"} <= set(texts(drawn))
    assert "sea" not in texts(drawn)


def test_forgetting(runs):
    figure = score_figures.forgetting(runs[1], "agcn")
    assert data(figure) == [
        {"t": 1, "j": 1, "v": 80}, {"t": 2, "j": 1, "v": 25}, {"t": 2, "j": 2, "v": 75},
    ]  # fmt: skip
    assert "task 1 from 80.0 to 25.0" in figure.alt
    assert {"80.0", "25.0", "75.0"} <= set(texts(svg(figure)))
    assert score_figures.forgetting(runs[3], "multi-task") is None


def test_relations_as_text(runs, tmp_path):
    assert strongest_relations(runs[1], 2) == [("boat", "sea", 0.75, 0.5), ("sky", "boat", 0.5, 0.5)]
    assert [r.p for r in strongest_relations(runs[1])] == [0.75, 0.5, 0.5, 0.3, 0.2]
    write_matrices(write_run(tmp_path / "equal"), truth=False)
    assert strongest_relations(read_run(tmp_path / "equal")) == []


# Classes


def test_class_ap(runs):
    figure = score_figures.class_ap({"agcn": runs[1], "fine-tuning": runs[2]})
    assert data(figure) == [{"m": m, "v": [500, 600, 300]} for m in (0, 1)]
    names = [text for text in texts(svg(figure)) if text in CLASSES]
    assert names == ["boat", "sky", "sea"]  # the highest first; trees are not in the test images
    assert "agcn 46.7" in figure.alt
    assert list(figure.static) == ["-agcn", "-fine-tuning"]


def test_class_changes(runs):
    figure = score_figures.class_changes(runs[1], "agcn")
    assert data(figure) == [{"c": 0, "t": 1, "a": 90, "b": 50}, {"c": 1, "t": 1, "a": 40, "b": 60}]
    assert param(figure, "names") == ["sky", "boat"]  # the largest loss first
    assert "sky lost most: from 90.0 to 50.0 %. boat gained most: from 40.0 to 60.0 %." in figure.alt
    assert "AP (%)" in texts(svg(figure))
    assert score_figures.class_changes(runs[2], "fine-tuning") is None  # no details
    assert score_figures.class_changes(runs[3], "multi-task") is None  # one task


def test_precision_recall(runs):
    figure = score_figures.precision_recall({"agcn": runs[1], "fine-tuning": runs[2], "multi-task": runs[3]})
    curves = {(row["m"], row["c"]): row["v"] for row in data(figure)}
    assert curves.keys() == {(m, c) for m in (0, 2) for c in (0, 1, 2, 3)}  # the fourth has no positive image
    assert curves[0, 1][::50] == [1000, 750, 500]
    assert set(curves[0, 2]) == {250}
    assert curves[0, 0][::50] == [750, 583, 417]  # the mean of the three classes
    assert figure.controls[0].values[:2] == ((0, "mean of all classes"), (1, "sky"))
    drawn = svg(figure, chosen=2)
    assert {"Class: boat", "AP 60.0  agcn", "AP 60.0  multi-task"} <= set(texts(drawn))
    for chosen, is_flat in ((1, False), (2, True)):
        path = re.search(r'aria-roledescription="line mark container".*? d="([^"]*)"', svg(figure, chosen=chosen))[1]
        heights = [point.split(",")[1] for point in re.findall(r"[-\d.]+,[-\d.]+", path)]
        assert len(heights) == 101 and (len(set(heights)) == 1 if is_flat else len(set(heights)) > 90)


def test_reliability(runs):
    figure = score_figures.reliability({"fine-tuning": runs[2], "agcn": runs[1]})
    assert data(figure) == [
        {"m": 1, "bin": "0.0 to 0.1", "x": 0.055, "y": 0.2, "n": 200},
        {"m": 1, "bin": "0.5 to 0.6", "x": 0.505, "y": 0.25, "n": 40},
        {"m": 1, "bin": "0.9 to 1.0", "x": 0.905, "y": 0.75, "n": 40},
    ]
    error = (200 * 0.145 + 40 * 0.255 + 40 * 0.155) / 280
    assert param(figure, "errors") == [None, round(error, 3)]
    assert param(figure, "method") == 1
    assert {f"agcn: expected calibration error {error:.3f}", "200", "40"} <= set(texts(svg(figure)))


def test_false_positives(runs):
    figure = score_figures.false_positives({"agcn": runs[1], "multi-task": runs[3]})
    values = data(figure)
    assert [(row["m"], row["t"]) for row in values] == [(0, 2), (1, 2)]  # after task 1 there are no earlier classes
    rates = dict(zip([round(0.05 * n, 2) for n in range(1, 20)], values[0]["v"], strict=True))
    assert [rates[threshold] for threshold in (0.05, 0.1, 0.5, 0.55, 0.9, 0.95)] == [100, 20, 20, 5, 5, 0]
    assert "agcn 20.00, multi-task 20.00" in figure.alt
    drawn = svg(figure, threshold=0.55)
    assert "false-positive rate (%) at threshold 0.55" in texts(drawn)
