"""Figures of runs, from run folders written by hand."""

import json

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image
from report.run_folders import edit_json, runs_of_two_and_one_task, scores, write_matrices, write_run

from lifelabel.errors import UserError
from lifelabel.methods import METHODS
from lifelabel.report import figures
from lifelabel.report.charts import save_figure
from lifelabel.report.figures import _FEW_CURVES, _draw_curves, draw_runs
from lifelabel.report.runs import group_by_label, read_run


def pixels(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        image.load()
        return np.asarray(image.convert("RGB"))


@pytest.fixture
def runs(tmp_path):
    """AGCN with two seeds and matrices, fine-tuning, multi-task."""
    for seed in (0, 1):
        write_matrices(write_run(tmp_path / f"agcn-{seed}", seed=seed, mAP=0.5 + seed / 10))
    write_run(tmp_path / "fine", method="fine-tuning", mAP=0.25)
    write_run(tmp_path / "joint", method="multi-task", mAP=0.9, joint=True)
    return [read_run(tmp_path / name) for name in ("agcn-0", "agcn-1", "fine", "joint")]


def test_the_figure_is_a_png_with_something_on_it(runs, tmp_path):
    draw_runs(group_by_label(runs), tmp_path / "report.png")
    shown = pixels(tmp_path / "report.png")
    assert shown.shape[0] > 300
    assert shown.shape[1] > 900
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) > 50
    assert not pyplot.get_fignums()


def test_the_figure_has_the_matrices_that_exist(runs, tmp_path):
    width = {}
    for name, chosen in {"curves": runs[2:], "all": runs}.items():
        draw_runs(group_by_label(chosen), tmp_path / f"{name}.png")
        width[name] = pixels(tmp_path / f"{name}.png").shape[1]
    without_truth = write_run(tmp_path / "untrue")
    write_matrices(without_truth, truth=False)
    draw_runs({"agcn": [read_run(without_truth)]}, tmp_path / "untrue.png")
    assert width["curves"] < pixels(tmp_path / "untrue.png").shape[1] < width["all"]


def test_the_last_matrix_is_the_last_by_number(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "a")
    classes = [f"c{i}" for i in range(11)]
    records = [{"task": t, "seen": scores(0.5)} for t in range(1, 12)]
    edit_json(folder / "metrics.json", tasks=[[name] for name in classes], per_task=records)
    matrices = {f"task_{t}": np.eye(t) for t in range(1, 12)}
    np.savez(folder / "acm.npz", **matrices, classes=np.array(classes))
    drawn = []
    monkeypatch.setattr("lifelabel.report.figures._draw_matrix", lambda axis, matrix, *more: drawn.append(matrix.shape))
    draw_runs({"agcn": [read_run(folder)]}, tmp_path / "a.png")
    assert drawn == [(11, 11)]  # task_9 is the last by name
    assert set(read_run(folder).matrices()) == {*matrices, "classes"}


def test_a_curve_with_a_gap_is_drawn(tmp_path):
    folder = write_run(tmp_path / "a")
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["per_task"][0]["seen"]["mAP"] = None
    (folder / "metrics.json").write_text(json.dumps(metrics))
    draw_runs({"agcn": [read_run(folder)]}, tmp_path / "a.png")
    assert pixels(tmp_path / "a.png").shape[1] > 100


def test_runs_with_different_numbers_of_tasks_have_no_common_curve(tmp_path):
    two, one = runs_of_two_and_one_task(tmp_path)
    with pytest.raises(UserError, match=r"^runs of 'agcn' have different numbers of tasks: report them separately$"):
        draw_runs({"agcn": [two, one]}, tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
    assert not pyplot.get_fignums()
    draw_runs({"two tasks": [two], "one task": [one]}, tmp_path / "b.png")
    pixels(tmp_path / "b.png")


@pytest.mark.parametrize("count", [_FEW_CURVES, len(METHODS)])
def test_every_curve_has_its_own_style(tmp_path, count):
    groups = {}
    for name in list(METHODS)[-count:]:
        folders = [write_run(tmp_path / f"{name}-{seed}", method=name, seed=seed, mAP=0.4 + seed) for seed in (0, 1)]
        groups[name] = [read_run(folder) for folder in folders]
    axis = Figure().subplots()
    _draw_curves(axis, groups)
    styles = {(line.get_color(), line.get_marker()) for line in axis.get_lines()}
    assert len(styles) == len(axis.get_lines()) == count
    assert len(axis.collections) == (count if count <= _FEW_CURVES else 0)  # bands of a dozen would hide each other
    assert [text.get_text().split()[1] for text in axis.get_legend().get_texts()] == list(groups)
    draw_runs(groups, tmp_path / "a.png")
    assert pixels(tmp_path / "a.png").shape[0] < 1000


def test_a_real_run(agcn_run, tmp_path, monkeypatch):
    """The curve, the last matrix and the true one have the values of the files of the run, and are in the PNG."""
    drawn = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: (drawn.append(figure), save_figure(figure, path)))
    draw_runs(group_by_label([read_run(agcn_run)]), tmp_path / "report.png")
    (figure,) = drawn
    curves, last, truth, bar = figure.axes
    records = json.loads((agcn_run / "metrics.json").read_text())["per_task"]
    (curve,) = curves.get_lines()
    assert curve.get_xdata().tolist() == [1, 2, 3, 4, 5]
    assert curve.get_ydata() == pytest.approx([100 * record["seen"]["mAP"] for record in records])
    with np.load(agcn_run / "acm.npz", allow_pickle=False) as arrays:
        for panel, name in ((last, "task_5"), (truth, "truth")):
            (image,) = panel.get_images()
            off_diagonal = ~np.eye(20, dtype=bool)
            assert np.array_equal(image.get_array()[off_diagonal], arrays[name][off_diagonal])
            assert image.get_array().mask[~off_diagonal].all()
            assert [label.get_text() for label in panel.get_yticklabels()] == arrays["classes"].tolist()
    assert (truth.get_title(), bar.get_ylabel()) == ("the true matrix", "P(row | column)")

    page = pixels(tmp_path / "report.png").astype(int)
    height, width = page.shape[:2]
    assert (height, width) == (572, 1669)  # 5.2 and 15.18 inches at 110 dots per inch
    has_colour = page.max(2) - page.min(2) > 60
    right = 0.0
    for panel in figure.axes:
        box = panel.get_position()
        assert right < box.x0  # side by side
        right = box.x1
        rows = slice(height - round(box.y1 * height), height - round(box.y0 * height))
        inside = has_colour[rows, round(box.x0 * width) : round(box.x1 * width)]
        # the curve ends shortly before both borders; a matrix and the colour bar fill their panel
        assert inside.any(0).mean() > 0.85 if panel is curves else inside.mean() > 0.85


# Untrusted text


HOSTILE = ["$5_to_$10", r"$\frac{", "\x1b[2J犬\n", "$" * 300]


@pytest.mark.parametrize("groups", [1, _FEW_CURVES + 1])
def test_hostile_names_of_classes_and_labels_are_drawn(tmp_path, groups):
    """In the titles, in the legend of one or two columns, and at the axes of the matrices."""
    label = r"a$b^{$ \frac$ " + "$x_" * 60
    runs = []
    for number in range(groups):
        folder = write_run(tmp_path / str(number), environment={"label": f"{label}{number}"[number:]})
        write_matrices(folder, classes=HOSTILE)
        runs.append(read_run(folder))
    draw_runs(group_by_label(runs), tmp_path / "a.png")
    pixels(tmp_path / "a.png")
