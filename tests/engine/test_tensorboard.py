"""The log for TensorBoard: its points, runs that resume, and runs without it."""

import json
import shutil
import sys

import numpy as np
import pytest
from engine.small_runs import At, Notes, assert_same_files, edit_config, error_of, options, read_lines

from lifelabel.engine import run as engine
from lifelabel.engine.tensorboard import _history, draw_matrix
from lifelabel.errors import Stopped, UserError
from lifelabel.runs.folder import RunFolder

tensorboard = pytest.importorskip("tensorboard")
LOGGED = {"method": "agcn", "log": "tensorboard", "checkpoint_seconds": 0.0}


def read(folder):
    """All points of a run by tag, pictures too, in the order of the file. Nothing is purged."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    (file,) = (folder / "tensorboard").iterdir()
    points = {}
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            points.setdefault(value.tag, []).append((event.step, make_ndarray(value.tensor).tolist()))
    return points


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return engine.train(tmp_path_factory.mktemp("logged") / "run", options(**LOGGED)).folder


def test_the_log_has_the_figures_of_the_other_files(whole):
    points, metrics = read(whole), json.loads((whole / "metrics.json").read_text())
    history = read_lines(whole / "history.jsonl")
    for name in ("cls", "dst", "gph"):
        expected = [(line["images"], line["losses"][name]) for line in history if name in line["losses"]]
        assert [step for step, _ in points[f"loss/{name}"]] == [step for step, _ in expected]
        assert np.allclose([v for _, v in points[f"loss/{name}"]], [v for _, v in expected], atol=1e-6)
    ends = [max(line["images"] for line in history if line["task"] == task) for task in (1, 2, 3)]
    for name in ("mAP", "CF1", "OF1"):
        steps, values = zip(*points[f"seen/{name}"], strict=True)
        assert list(steps) == ends
        assert np.allclose(values, [record["seen"][name] for record in metrics["per_task"]])
        assert len(points[f"{name} by task/task 1"]) == 3 and len(points[f"{name} by task/task 3"]) == 1
        assert np.isclose(points[f"forgetting/{name}"][-1][1], metrics["final"]["forgetting"][name])
        assert [step for step, _ in points[f"forgetting/{name}"]] == ends[1:]
    assert np.isclose(points["error of the matrix/all"][-1][1], metrics["final"]["acm_error"]["all"])
    assert [step for step, _ in points["matrix"]] == ends


def test_the_configuration_is_shown_as_it_is(whole):
    from tensorboard.plugin_util import markdown_to_safe_html

    ((_, (text,)),) = read(whole)["configuration/text_summary"]
    page = markdown_to_safe_html(text)
    assert page.startswith("<pre><code># ") and page.count("<") == 4  # no other tag
    assert "\nmethod: agcn\n" in page and "\n  mix: " in page


def test_metrics_do_not_depend_on_the_log(whole, tmp_path):
    plain = engine.train(tmp_path / "plain", options(method="agcn")).folder
    assert_same_files(plain, whole, "metrics.json", "history.jsonl", "acm.npz")
    assert not (plain / "tensorboard").exists()


@pytest.mark.parametrize("first", ["none", "tensorboard"])
def test_a_resumed_run_has_every_point_once(first, whole, tmp_path):
    """Also if the log is switched on when the run resumes."""
    with pytest.raises(Stopped):
        engine.train(tmp_path / "run", options(**{**LOGGED, "log": first}), callback=At(6))
    edit_config(tmp_path / "run", log="tensorboard")
    engine.resume(tmp_path / "run")
    resumed, expected = read(tmp_path / "run"), read(whole)
    del resumed["configuration/text_summary"], expected["configuration/text_summary"]
    assert resumed == expected


def test_overwrite_deletes_its_own_event_files(whole, tmp_path):
    folder = RunFolder(shutil.copytree(whole, tmp_path / "run"))
    mine = folder / "tensorboard" / "events.out.tfevents.1.mine"
    mine.touch()
    with folder.new(overwrite=True):
        assert list((folder / "tensorboard").iterdir()) == [mine]


def test_a_missing_package_is_one_line_and_nothing_is_written(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    line = error_of(engine.train, tmp_path / "run", options(**LOGGED))
    assert line == "--log tensorboard needs the package tensorboard: pip install 'lifelabel[tensorboard]'"
    assert not (tmp_path / "run").exists()


def test_a_log_that_cannot_be_written_does_not_end_the_run(whole, tmp_path, monkeypatch):
    from torch.utils.tensorboard import SummaryWriter

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    notes = Notes()
    monkeypatch.setattr(SummaryWriter, "flush", full)
    assert_same_files(engine.train(tmp_path / "run", options(**LOGGED), callback=notes).folder, whole, "metrics.json")
    (line,) = notes.lines
    assert line.endswith(": No space left on device; the log for TensorBoard ends here")


def test_the_picture_of_a_matrix():
    picture = draw_matrix(np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]), [2, 1])
    yellow, dark = (253, 231, 37), (68, 1, 84)
    assert picture.dtype == np.uint8 and picture.shape == (480, 480, 3)
    assert tuple(picture[80, 80]) == (255, 255, 255) and tuple(picture[80, 240]) == dark
    assert tuple(picture[80, 400]) == yellow and tuple(picture[319, 10]) == (160, 160, 160)
    assert draw_matrix(np.eye(700), [300, 400]).shape == (700, 700, 3)


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"task": 1}', '{"task": 1, "images": 2, "losses": {"a": "x"}}', "[" * 10**5]
)
def test_a_damaged_history_is_one_line(tmp_path, text):
    path = tmp_path / "history.jsonl"
    path.write_text('{"task": 1, "images": 2, "losses": {"a": 0.5}}\n' + text)
    lines = _history(path)
    assert next(lines)["losses"] == {"a": 0.5}
    with pytest.raises(UserError, match=r"history\.jsonl, line 2, is damaged: give log: none in .*config.yaml to"):
        next(lines)
