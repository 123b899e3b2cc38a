"""The report, from run folders written by hand: figures that a pocket calculator gives too."""

import json

import numpy as np
import pytest
from PIL import Image

from lifelabel.config import Config
from lifelabel.errors import UserError
from lifelabel.methods import METHODS
from lifelabel.report.picture import FEW, _curves, draw
from lifelabel.report.runs import COLUMNS, CONVENTIONS, by_label, cell, find_runs, markdown, read_run, rows

TASKS = [["sky", "boat"], ["sea", "tree"]]
CLASSES = [name for task in TASKS for name in task]


def scores(value):
    return {"mAP": value, "CF1": value / 2, "OF1": value / 4}


def write_run(
    folder, *, method="agcn", fidelity="tuned", seed=0, mAP=0.5, first=0.8, joint=False, options=None, more=None,
    **final,
):  # fmt: skip
    """A run folder in the form the engine writes: two tasks, or one record of both where `joint`."""
    folder.mkdir(parents=True)
    last = {
        "task": 2,
        "seen": scores(mAP),
        "by_task": [scores(0.25), scores(0.75)],
        "cumulative": [scores(first), scores(mAP)],
    }
    records = [last] if joint else [{"task": 1, "seen": scores(first), "by_task": [scores(first)]}, last]
    metrics = {
        "stream": "scenes", "method": method, "fidelity": fidelity, "seed": seed, "classes": CLASSES, "tasks": TASKS,
        "finished": True, "by_task": {}, "per_task": records, "final": {**scores(mAP), **final},
    }  # fmt: skip
    environment = {
        "date": "2024-05-06", "lifelabel": "9.8.7", "commit": "abc123", "torch": "2.6.0", "device": "test-cpu",
        "threads": 2, "seconds": 10.0 + seed,
    }  # fmt: skip
    config = Config.make({"method": method, "fidelity": fidelity, "seed": seed, **(options or {})})
    (folder / "config.yaml").write_text(config.to_yaml())
    (folder / "metrics.json").write_text(json.dumps({**metrics, **(more or {})}))
    (folder / "environment.json").write_text(json.dumps(environment))
    return folder


def write_matrices(folder, truth=True):
    arrays = {"task_1": np.eye(2), "task_2": np.eye(4), "classes": np.array(CLASSES)}
    np.savez(folder / "acm.npz", **arrays, **({"truth": np.full((4, 4), 0.5)} if truth else {}))


@pytest.fixture
def runs(tmp_path):
    """AGCN with three seeds, fine-tuning with one, multi-task with one."""
    for seed, mAP, forgetting in ((0, 0.50, 0.1), (1, 0.52, 0.2), (2, 0.60, 0.3)):
        folder = write_run(
            tmp_path / f"agcn-{seed}", seed=seed, mAP=mAP, first=0.8 + seed / 100,
            forgetting={"mAP": forgetting, "CF1": 9, "OF1": 9}, acm_error={"all": 0.0625 * (seed + 1), "intra": 9},
        )  # fmt: skip
        write_matrices(folder)
    write_run(tmp_path / "fine", method="fine-tuning", mAP=0.25, forgetting={"mAP": -0.125})
    write_run(tmp_path / "joint", method="multi-task", mAP=0.9, joint=True)
    return [read_run(tmp_path / name) for name in ("agcn-0", "agcn-1", "agcn-2", "fine", "joint")]


def test_rows_by_hand(runs):
    # mAP 50, 52, 60: mean 54, squared distances 16 + 4 + 36 = 56, sd sqrt(56 / 2) = 5.29 (n - 1).
    # CF1 is half, OF1 a quarter of it; forgetting 10, 20, 30; ACM error 1/16, 2/16, 3/16; seconds 10, 11, 12.
    assert COLUMNS == ("mAP", "CF1", "OF1", "forgetting", "ACM error", "seconds")
    assert rows(runs) == [
        ["agcn", "54.00 ± 5.29", "27.00 ± 2.65", "13.50 ± 1.32", "20.00 ± 10.00", "0.125 ± 0.062", "11 ± 1"],
        ["fine-tuning", "25.00", "12.50", "6.25", "-12.50", "–", "10"],
        ["multi-task", "90.00", "45.00", "22.50", "–", "–", "10"],
    ]


def test_a_cell_leaves_out_what_does_not_exist(tmp_path):
    one = read_run(write_run(tmp_path / "one", seed=1, forgetting={"mAP": None}))
    two = read_run(write_run(tmp_path / "two", seed=2, forgetting={"mAP": 0.1}))
    assert cell("forgetting", [one]) == "–"
    assert cell("forgetting", [one, two]) == "10.00"


def test_seeds_share_a_row_and_fidelities_do_not(tmp_path):
    made = [("a", "tuned", 0), ("b", "paper", 0), ("c", "tuned", 1), ("d", "release", 0)]
    runs = [read_run(write_run(tmp_path / name, fidelity=f, seed=seed)) for name, f, seed in made]
    grouped = by_label(runs)
    assert list(grouped) == ["agcn", "agcn (paper)", "agcn (release)"]
    assert [run.metrics["seed"] for run in grouped["agcn"]] == [0, 1]


def test_options_chosen_otherwise_have_a_row_of_their_own(tmp_path):
    chosen = {"a": {}, "b": {"method_options": {"lambdas": [1, 2, 3], "mix": 0.2}}, "c": {"lr": 0.5}, "d": {"seed": 4}}
    runs = [read_run(write_run(tmp_path / n, seed=o.get("seed", 0), options=o)) for n, o in chosen.items()]
    assert [row[0] for row in rows(runs)] == ["agcn", "agcn (lambdas=1.0,2.0,3.0, mix=0.2)", "agcn (lr=0.5)"]


def test_runs_on_different_streams_are_not_averaged(tmp_path):
    small = read_run(write_run(tmp_path / "small", options={"stream_options": {"train_images": 60}}))
    large = read_run(write_run(tmp_path / "large", options={"stream_options": {"train_images": 600}}))
    assert len(rows([small, large])) == 2


def test_photographs_are_named_by_stream_and_not_by_path(tmp_path):
    photos = {"stream": "t.csv", "stream_options": {"root": "/data/a"}, "words": "/data/glove.txt", "workers": 3}
    names = {"a": "split-coco", "b": "split-coco", "c": "scenes"}
    made = [write_run(tmp_path / n, options=photos, more={"stream": stream}) for n, stream in names.items()]
    assert [row[0] for row in rows([read_run(made[0])])] == ["agcn (words=glove.txt)"]
    environment = json.loads((made[1] / "environment.json").read_text())
    (made[1] / "environment.json").write_text(json.dumps({**environment, "stream_fingerprint": "0123456789"}))
    assert [row[0] for row in rows([read_run(run) for run in made])] == [
        "agcn (words=glove.txt) on split-coco [None]",
        "agcn (words=glove.txt) on split-coco [01234567]",
        "agcn (words=glove.txt) on scenes",
    ]


def test_the_same_run_twice_is_one_seed(tmp_path):
    run = write_run(tmp_path / "a")
    assert "±" not in rows([read_run(run), read_run(run)])[0][1]


def test_the_curve_of_a_lifelong_run(runs):
    assert runs[1].curve() == pytest.approx([81, 52])


def test_the_curve_of_a_joint_run_is_its_final_scores_on_the_same_sets(runs):
    assert runs[4].curve() == pytest.approx([80, 90])


def test_a_curve_keeps_the_gap_where_there_is_no_score(tmp_path):
    folder = write_run(tmp_path / "a")
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["per_task"][0]["seen"]["mAP"] = None
    (folder / "metrics.json").write_text(json.dumps(metrics))
    run = read_run(folder)
    assert run.curve() == [None, 50]
    draw([run], tmp_path / "a.png")
    assert Image.open(tmp_path / "a.png").size[0] > 100


def test_markdown(runs):
    lines = markdown(runs).splitlines()
    assert lines[0] == "| method | mAP | CF1 | OF1 | forgetting | ACM error | seconds |"
    assert lines[1] == "|---|---:|---:|---:|---:|---:|---:|"
    assert lines[2].startswith("| agcn | 54.00 ± 5.29 | 27.00 ± 2.65 |")
    assert lines[4] == "| multi-task | 90.00 | 45.00 | 22.50 | – | – | 10 |"
    assert lines[5] == ""
    (measured,) = (line for line in lines if line.startswith("Stream"))
    for part in ("scenes", "seeds 0, 1, 2", "test-cpu", "2 threads", "2.6.0", "2024-05-06", "9.8.7", "abc123"):
        assert part in measured
    assert lines[-1] == CONVENTIONS


def pixels(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        image.load()
        return np.asarray(image.convert("RGB"))


def test_the_picture_is_a_png_with_something_on_it(runs, tmp_path):
    draw(runs, tmp_path / "report.png")
    shown = pixels(tmp_path / "report.png")
    assert shown.shape[0] > 300
    assert shown.shape[1] > 900
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) > 50


def test_the_picture_has_the_matrices_there_are(runs, tmp_path):
    width = {}
    for name, chosen in {"curves": runs[3:], "all": runs}.items():
        draw(chosen, tmp_path / f"{name}.png")
        width[name] = pixels(tmp_path / f"{name}.png").shape[1]
    untrue = write_run(tmp_path / "untrue")
    write_matrices(untrue, truth=False)
    draw([read_run(untrue)], tmp_path / "untrue.png")
    assert width["curves"] < pixels(tmp_path / "untrue.png").shape[1] < width["all"]


def test_the_last_matrix_is_the_last_by_number(tmp_path):
    folder = write_run(tmp_path / "a")
    big = {f"task_{t}": np.eye(t) for t in range(1, 12)}
    np.savez(folder / "acm.npz", **big, classes=np.array([f"c{i}" for i in range(11)]))
    draw([read_run(folder)], tmp_path / "a.png")  # task_9 after task_11 would not fit the eleven classes
    assert set(read_run(folder).matrices()) == {*big, "classes"}


def test_runs_of_streams_of_different_length_can_share_a_report(tmp_path):
    two = read_run(write_run(tmp_path / "two", seed=0))
    folder = write_run(tmp_path / "one", seed=1)
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics |= {"tasks": [CLASSES], "per_task": metrics["per_task"][1:]}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    try:
        draw([two, read_run(folder)], tmp_path / "a.png")
    except UserError as error:
        assert "task" in str(error)  # refused in words is as good
    else:
        pixels(tmp_path / "a.png")


def test_an_unfinished_run_is_refused_with_what_to_do(tmp_path):
    folder = write_run(tmp_path / "a", more={"finished": False})
    with pytest.raises(UserError, match=f"{folder} is not finished: go on with `lifelabel train --resume {folder}`"):
        read_run(folder)


def test_a_run_before_its_first_evaluation_is_not_finished_either(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "metrics.json").unlink()
    with pytest.raises(UserError, match="is not finished"):
        read_run(folder)


def test_no_run_at_all(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*metrics.json"):
        read_run(tmp_path)


@pytest.mark.parametrize("text", ["[]", "3", '"finished"', '{"finished": true}', '{"finished": true, "final": {}}'])
def test_a_metrics_file_of_another_form(tmp_path, text):
    folder = write_run(tmp_path / "a")
    (folder / "metrics.json").write_text(text)
    with pytest.raises(UserError, match=r"metrics\.json"):
        rows([read_run(folder)])


def test_a_damaged_matrix_file(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "acm.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(UserError, match=r"acm\.npz"):
        read_run(folder).matrices()


def test_a_real_run(agcn_run, tmp_path):
    run = read_run(agcn_run)
    ((name, *cells),) = rows([run])
    assert name == "agcn (stream.train_images=60, stream.test_images=60)"
    assert cells[0] == f"{100 * run.metrics['final']['mAP']:.2f}"
    assert len(run.curve()) == 5
    assert run.curve()[-1] == pytest.approx(100 * run.metrics["final"]["mAP"])
    draw([run], tmp_path / "report.png")
    pixels(tmp_path / "report.png")


def test_one_seed_run_twice_is_refused(tmp_path):
    runs = [read_run(write_run(tmp_path / name)) for name in "ab"]
    with pytest.raises(UserError, match="same run with the same seed"):
        rows(runs)


def test_orders_of_the_tasks_share_a_row_like_seeds(tmp_path):
    """Another order has another fingerprint and is the same stream; the same seed in the same order is the same run."""
    runs = []
    for seed, order in ((0, 0), (0, 1), (1, 0), (1, 1)):
        folder = write_run(tmp_path / f"{seed}{order}", seed=seed, mAP=0.5 + seed / 100, options={"task_order": order})
        path = folder / "environment.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "stream_fingerprint": f"print {order}"}))
        runs.append(read_run(folder))
    assert [(row[0], row[1]) for row in rows(runs)] == [("agcn", "50.50 ± 0.58")]
    assert "seeds 0, 1, task orders 0, 1;" in markdown(runs)
    assert "task orders" not in markdown(runs[::2])
    other = read_run(write_run(tmp_path / "other", seed=2, options={"task_order": 1}))  # on a stream of its own
    assert len(rows([*runs, other])) == 3
    twice = read_run(write_run(tmp_path / "twice", seed=2, options={"task_order": 1}))
    with pytest.raises(UserError, match=r"the same seed and the same order of tasks \(1\)"):
        rows([other, twice])


def test_what_is_scored_makes_another_row_and_what_is_saved_does_not(tmp_path):
    chosen = ({}, {"save_scores": True, "seed": 1}, {"hold_out": 0.2}, {"first_tasks": 3})
    runs = [read_run(write_run(tmp_path / str(n), seed=o.get("seed", 0), options=o)) for n, o in enumerate(chosen)]
    assert [row[0] for row in rows(runs)] == ["agcn", "agcn (hold_out=0.2)", "agcn (first_tasks=3)"]


@pytest.mark.parametrize("count", [FEW, len(METHODS)])
def test_curves_can_be_told_apart(tmp_path, count):
    from matplotlib.figure import Figure

    groups = {}
    for name in list(METHODS)[-count:]:
        folders = [write_run(tmp_path / f"{name}-{seed}", method=name, seed=seed, mAP=0.4 + seed) for seed in (0, 1)]
        groups[name] = [read_run(folder) for folder in folders]
    axis = Figure().subplots()
    _curves(axis, groups)
    looks = {(line.get_color(), line.get_marker()) for line in axis.get_lines()}
    assert len(looks) == len(axis.get_lines()) == count
    assert len(axis.collections) == (count if count <= FEW else 0)  # bands of a dozen would hide each other
    assert [text.get_text().split()[1] for text in axis.get_legend().get_texts()] == list(groups)
    draw([run for group in groups.values() for run in group], tmp_path / "a.png", groups)
    assert pixels(tmp_path / "a.png").shape[0] < 1000


def test_a_folder_of_runs_stands_for_its_runs(tmp_path):
    folders = [write_run(tmp_path / "demo" / name) for name in "ab"]
    (tmp_path / "demo" / "report.png").touch()
    alone = write_run(tmp_path / "alone")
    assert find_runs([tmp_path / "demo", alone]) == [*folders, alone]
