"""Finished runs, read from folders written by hand, and their rows in a table."""

import json

import numpy as np
import pytest
from report.run_folders import (
    CLASSES,
    edit_json,
    forgetting,
    make_run,
    table_file,
    table_of,
    write_matrices,
    write_run,
)

from lifelabel.errors import UserError
from lifelabel.report.tables import ResultTable, notes, one_line
from lifelabel.runs.finished import common_options, find_runs, group_by_label, read_run


@pytest.fixture
def runs(tmp_path):
    """AGCN with three seeds, fine-tuning with one, multi-task with one."""
    for seed, mAP, forgotten in ((0, 0.50, 0.1), (1, 0.52, 0.2), (2, 0.60, 0.3)):
        folder = write_run(
            tmp_path / f"agcn-{seed}", seed=seed, mAP=mAP, first=0.8 + seed / 100, **forgetting(forgotten),
            acm_error={"all": 0.0625 * (seed + 1), "intra": 9},
        )  # fmt: skip
        write_matrices(folder)
    write_run(tmp_path / "fine", method="fine-tuning", mAP=0.25, forgetting={"mAP": -0.125})
    write_run(tmp_path / "joint", method="multi-task", mAP=0.9, joint=True)
    return [read_run(tmp_path / name) for name in ("agcn-0", "agcn-1", "agcn-2", "fine", "joint")]


def names(runs):
    """The names of the rows of a table of `runs`."""
    return [row.name for row in ResultTable.from_runs(runs).rows]


# Rows


def test_rows_and_notes_by_hand(runs):
    # mAP 50, 52, 60: mean 54, squared distances 16 + 4 + 36 = 56, sd sqrt(56 / 2) = 5.29 (n - 1).
    # CF1 is half, OF1 a quarter of it; forgetting 10, 20, 30; error of the matrix 1/16, 2/16, 3/16; seconds 10, 11, 12.
    unknown = ["–", "–"]
    text = table_file(ResultTable.from_runs(runs))
    assert table_of(text) == [
        [
            "method",
            "mAP, final ↑",
            "CF1, final ↑",
            "OF1, final ↑",
            "n",
            "stored images",
            "stored MB",
            "seconds",
            "images/s",
            "peak GB",
        ],
        ["---", *["---:"] * 9],
        ["agcn", "**54.00 ± 5.29**", "**27.00 ± 2.65**", "**13.50 ± 1.32**", "3", *unknown, "11", *unknown],
        ["Forgetting ↓", "20.00 ± 10.00", "10.00 ± 5.00", "5.00 ± 2.50", *[""] * 6],
        ["fine-tuning", "25.00", "12.50", "6.25", "1", *unknown, "10", *unknown],
        ["Forgetting ↓", "-12.50", "–", "–", *[""] * 6],
        ["multi-task", "90.00", "45.00", "22.50", "1", *unknown, "10", *unknown],
        ["method", "all", "intra", "old-new", "new-old"],
        ["---", *["---:"] * 4],
        ["agcn", "0.125 ± 0.062", "9.000 ± 0.000", *unknown],
        ["fine-tuning", "–", "–", *unknown],
        ["multi-task", "–", "–", *unknown],
    ]
    assert [row.joint for row in ResultTable.from_runs(runs).rows] == [False, False, True]
    lines = text.splitlines()
    assert lines[:2] == ["# Runs on scenes", ""]
    (measured,) = (line for line in lines if line.startswith("Stream"))
    for part in ("scenes", "seeds 0, 1, 2", "test-cpu", "2 threads", "2.6.0", "2024-05-06", "9.8.7", "abc123"):
        assert part in measured
    for start in ("mAP, CF1 and OF1 in % after the last task,", "Stored: ", "Error of the matrix: mean absolute error"):
        assert sum(line.startswith(start) for line in lines) == 1
    without_matrix = table_file(ResultTable.from_runs(runs[3:]))
    assert "Error of the matrix" not in without_matrix and len(table_of(without_matrix)) == 5


def test_one_line(runs):
    assert one_line(runs[0]) == "mAP 50.00  CF1 25.00  OF1 12.50  forgetting 10.00"
    assert one_line(runs[3]).endswith("  forgetting -12.50 (below 0: better than before)")
    assert one_line(runs[4]) == "mAP 90.00  CF1 45.00  OF1 22.50  forgetting –"


def test_a_mean_leaves_out_what_does_not_exist(tmp_path):
    one = read_run(write_run(tmp_path / "one", seed=1, forgetting={"mAP": None}))
    two = read_run(write_run(tmp_path / "two", seed=2, forgetting={"mAP": 0.1}))
    assert not any("Forgetting" in line[0] for line in table_of(table_file(ResultTable.from_runs([one]))))
    assert table_of(table_file(ResultTable.from_runs([one, two])))[3][:2] == ["Forgetting ↓", "10.00"]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (({}, {"fidelity": "paper"}, {"seed": 1}, {"fidelity": "release"}), ["agcn", "agcn (paper)", "agcn (release)"]),
        (
            ({}, {"method_options": {"lambdas": [1, 2, 3], "mix": 0.2}}, {"lr": 0.5}, {"seed": 4}),
            ["agcn", "agcn (lambdas=1.0,2.0,3.0, mix=0.2)", "agcn (lr=0.5)"],
        ),
        (
            [{"stream_options": {"train_images": number}} for number in (60, 600)],
            ["agcn (stream.train_images=60)", "agcn (stream.train_images=600)"],
        ),
        # options of the evaluation, and one of saving
        (
            ({}, {"save_scores": True, "seed": 1}, {"hold_out": 0.2}, {"first_tasks": 3}),
            ["agcn", "agcn (hold_out=0.2)", "agcn (first_tasks=3)"],
        ),
    ],
)
def test_seeds_share_a_row_and_other_options_do_not(tmp_path, chosen, expected):
    runs = [read_run(write_run(tmp_path / str(n), seed=o.get("seed", 0), options=o)) for n, o in enumerate(chosen)]
    assert names(runs) == expected


def test_photographs_are_named_by_stream_and_not_by_path(tmp_path):
    photos = {"stream": "t.csv", "stream_options": {"root": "/data/a"}, "words": "/data/glove.txt", "workers": 3}
    streams = {"a": "split-coco", "b": "split-coco", "c": "scenes"}
    made = [write_run(tmp_path / n, options=photos, more={"stream": stream}) for n, stream in streams.items()]
    assert names([read_run(made[0])]) == ["agcn (words=glove.txt)"]
    edit_json(made[1] / "environment.json", stream_fingerprint="0123456789")
    runs = [read_run(run) for run in made]
    assert names(runs) == [
        "agcn (words=glove.txt) on split-coco [None]",
        "agcn (words=glove.txt) on split-coco [01234567]",
        "agcn (words=glove.txt) on scenes",
    ]
    table = ResultTable.from_runs(runs)
    assert table.title == "Runs on scenes, split-coco"
    assert any(note.startswith("NOT THE SAME STREAM FOR ALL") for note in notes(table))


def test_the_same_folder_twice_is_one_seed_and_another_run_of_the_seed_is_refused(tmp_path):
    a, b, *others = (
        read_run(write_run(tmp_path / name, mAP=m)) for name, m in zip("abc", (0.5, 0.5, 0.6), strict=True)
    )
    for again in (read_run(tmp_path / "." / "a"), b):  # a row of a study can be a run of a comparison, trained twice
        (row,) = ResultTable.from_runs([a, again]).rows
        assert row.runs == (a,) and row.stats["mAP"].n == 1
    message = f"{others[0].path} and {a.path} are the same run with the same seed, and their scores differ: give one of"
    with pytest.raises(UserError, match=message):
        group_by_label([a, b, *others])


def test_orders_of_the_tasks_share_a_row_like_seeds(tmp_path):
    """Another order has another fingerprint and is the same stream; the same seed in the same order is the same run."""
    runs = []
    for seed, order in ((0, 0), (0, 1), (1, 0), (1, 1)):
        environment = {"stream_fingerprint": f"print {order}"}
        folder = write_run(
            tmp_path / f"{seed}{order}", seed=seed, mAP=0.5 + seed / 100, options={"task_order": order},
            environment=environment,
        )  # fmt: skip
        runs.append(read_run(folder))
    table = ResultTable.from_runs(runs)
    assert table_of(table_file(table))[2][:2] == ["agcn", "50.50 ± 0.58"]
    assert "seeds 0, 1, task orders 0, 1;" in table_file(table)
    assert "task orders" not in table_file(ResultTable.from_runs(runs[::2]))
    other = read_run(write_run(tmp_path / "other", seed=2, options={"task_order": 1}))  # on a stream of its own
    assert len(names([*runs, other])) == 3
    twice = read_run(write_run(tmp_path / "twice", seed=2, mAP=0.4, options={"task_order": 1}))
    with pytest.raises(UserError, match=r"the same seed and the same order of tasks \(1\)"):
        group_by_label([other, twice])


def test_figures_of_three_conventions(runs, tmp_path):
    """tests/report has their tables. Scores after task 1 are 80, 81 and 82, and that of the joint run is 80."""
    found = [run.figures() for run in runs]
    assert [each["average_mAP"] for each in found] == pytest.approx([65, 66.5, 71, 52.5, 85])
    assert found[0]["cumulative_mean_mAP"] is found[0]["relative_forgetting_OF1"] is None
    extended = write_run(tmp_path / "extended", cumulative_mean={"mAP": 0.25})
    edit_json(extended / "metrics.json", per_task=json.loads((extended / "metrics.json").read_text())["per_task"][1:])
    edit_json(extended / "metrics.json", tasks=[["a"], ["b"], ["c"]])
    figures = read_run(extended).figures()  # it has no score right after the first tasks
    assert figures["cumulative_mean_mAP"] == 25 and figures["average_mAP"] is None


# Matrices


def test_matrices(runs):
    assert runs[3].matrices == {}
    arrays = runs[0].matrices
    assert set(arrays) == {"task_1", "task_2", "classes", "truth", "kept"}
    assert arrays["classes"].tolist() == CLASSES


def wrong_matrices(**arrays):
    given = {"task_1": np.eye(2), "task_2": np.eye(4), "classes": np.array(CLASSES), **arrays}
    return lambda path: np.savez(path, **{name: array for name, array in given.items() if array is not None})


NOT_OF_THIS_RUN = {
    "no last matrix": wrong_matrices(task_2=None),
    "no classes": wrong_matrices(classes=None),
    "one class": wrong_matrices(classes=np.array("sky")),
    "other classes": wrong_matrices(classes=np.array(CLASSES[:3])),
    "not square": wrong_matrices(task_2=np.ones((4, 3))),
    "another truth": wrong_matrices(truth=np.eye(5)),
    "text": wrong_matrices(task_2=np.full((4, 4), "x")),
}


@pytest.mark.parametrize("what", NOT_OF_THIS_RUN)
def test_matrices_that_are_not_of_this_run_are_refused(tmp_path, what):
    path = write_run(tmp_path / "a") / "acm.npz"
    NOT_OF_THIS_RUN[what](path)
    with pytest.raises(UserError, match=f"^{path} does not hold the matrices of this run$"):
        _ = read_run(tmp_path / "a").matrices


@pytest.mark.parametrize("content", [b"PK\x03\x04 and no more", b"", b"text"])
def test_a_damaged_matrix_file_is_refused(tmp_path, content):
    folder = write_run(tmp_path / "a")
    (folder / "acm.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"acm\.npz is damaged or cut short$"):
        _ = read_run(folder).matrices


# Folders


def test_a_folder_of_runs_stands_for_its_runs(tmp_path):
    folders = [write_run(tmp_path / "demo" / name) for name in "ab"]
    (tmp_path / "demo" / "report.html").touch()
    (tmp_path / "demo" / "figures").mkdir()
    other = write_run(tmp_path / "other")
    assert find_runs([tmp_path / "demo", other]) == [*folders, other]
    assert find_runs([tmp_path / "nowhere"]) == [tmp_path / "nowhere"]


def test_a_run_that_is_not_finished_or_that_is_none_is_refused_with_what_to_do(tmp_path):
    folder = write_run(tmp_path / "a", more={"finished": False})
    message = f"{folder} is not finished: continue with `lifelabel train --resume {folder}`"
    with pytest.raises(UserError, match=message):
        read_run(folder)
    (folder / "metrics.json").unlink()  # before the first evaluation
    with pytest.raises(UserError, match=message):
        read_run(folder)
    with pytest.raises(UserError, match=r"cannot read .*metrics.json"):
        read_run(tmp_path)


def damage(text):
    """The line for files that are JSON and YAML but not those of a run."""
    return f"^config.yaml, metrics.json or environment.json of {text} is damaged, or of another version of lifelabel$"


@pytest.mark.parametrize("text", ["[]", "3", '"finished"', '{"finished": true}', '{"finished": true, "final": {}}'])
def test_a_metrics_file_of_another_form(tmp_path, text):
    folder = write_run(tmp_path / "a")
    (folder / "metrics.json").write_text(text)
    what = damage(folder) if "{" in text else "metrics.json is damaged: not a JSON object$"
    with pytest.raises(UserError, match=what):
        read_run(folder)


FINAL = {"mAP": 0.5, "CF1": 0.5, "OF1": 0.5}
IN_METRICS = [
    {"final": {**FINAL, "mAP": "0.5"}}, {"final": {**FINAL, "CF1": [0.5]}}, {"final": {**FINAL, "OF1": float("nan")}},
    {"final": {**FINAL, "mAP": 10**400}}, {"final": {"mAP": 0.5}}, {"final": {**FINAL, "forgetting": [0.1]}},
    {"final": {**FINAL, "cumulative_mean": {"mAP": 2}}}, {"final": {**FINAL, "relative_forgetting": {"mAP": "x"}}},
    {"final": {**FINAL, "acm_error": {"all": "small"}}}, {"final": {**FINAL, "ap": {"sky": "x"}}},
    {"final": {**FINAL, "groups": [1]}}, {"final": {**FINAL, "groups": {"major": 3}}},
    {"final": {**FINAL, "groups": {"major": {}}}}, {"final": {**FINAL, "groups": {"major": {**FINAL, "mAP": 2}}}},
    {"by_task": {"mAP": [["x"]]}}, {"by_task": {"mAP": 3}}, {"by_task": []}, {"seed": "one"}, {"seed": None},
    {"tasks": 2}, {"tasks": [["sky"], 3]}, {"tasks": [["sky"], []]}, {"tasks": [["sky", 7]]}, {"per_task": []},
    {"per_task": [{"seen": {"mAP": "x"}}, {"seen": {"mAP": 0.5}}]},
]  # fmt: skip
IN_ENVIRONMENT = [
    {"seconds": "long"}, {"footprint": [1, 2]}, {"device": ["cpu"]}, {"threads": float("inf")}, {"label": None},
    {"seconds": None}, {"device": None}, {"torch": None}, {"commit": None},
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "values"),
    [*(("metrics.json", each) for each in IN_METRICS), *(("environment.json", each) for each in IN_ENVIRONMENT)],
)
def test_a_value_that_no_run_has(tmp_path, name, values):
    """In the environment, None stands for a value that is missing, as in one of another version."""
    path = write_run(tmp_path / "a") / name
    found = {**json.loads(path.read_text()), **values}
    missing = [key for key, value in values.items() if value is None and name == "environment.json"]
    path.write_text(json.dumps({key: value for key, value in found.items() if key not in missing}))
    with pytest.raises(UserError, match=damage(path.parent)):
        read_run(path.parent)


@pytest.mark.parametrize("text", ["", "task_order: first", "task_order: 0\nmethod_options: [1]"])
def test_a_configuration_that_no_run_has(tmp_path, text):
    folder = write_run(tmp_path / "a")
    (folder / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=damage(folder)):
        read_run(folder)


def test_a_configuration_with_dates_and_infinities_is_written_as_text(tmp_path):
    folder = write_run(tmp_path / "a")
    with open(folder / "config.yaml", "a") as file:
        file.write("since: 2024-05-06\nlimit: .inf\n")
    assert read_run(folder).config["since"] == "2024-05-06"
    assert read_run(folder).config["limit"] == "Infinity"


def test_options_that_all_runs_have_are_not_in_their_labels(tmp_path):
    runs = [
        make_run(tmp_path / "a", "agcn", options={"word_dim": 50, "method_options": {"mix": 0.2}}),
        make_run(tmp_path / "b", "er", options={"word_dim": 50}),
    ]
    assert list(group_by_label(runs)) == ["agcn (mix=0.2)", "er"]
    assert common_options(runs) == ["word_dim=50"]
    assert list(group_by_label(runs[1:])) == ["er (word_dim=50)"]
