"""Links in the folders that commands write: none of them is followed, and what they lead to is not changed."""

import os
import shutil

import numpy as np
import pytest
from conftest import SMALL
from engine.small_runs import options

from lifelabel.engine import run as engine
from lifelabel.engine.callback import Callback
from lifelabel.engine.verification import verify
from lifelabel.errors import UserError


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory):
    """The folder of a run that was stopped after its first task, with a model folder for each task."""

    class Stop(Callback):
        def evaluated(self, record):
            raise InterruptedError

    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(InterruptedError):
        engine.train(folder, options(method="fine-tuning", keep_tasks=True), callback=Stop())
    return folder


@pytest.fixture
def link(tmp_path):
    """`link(path)` makes a link at `path` to a folder or a file. At the end, its target must not be changed."""
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in ("model.json", "README.md", "task-1.npz", "report.md", "events.out.tfevents.1.lifelabel"):
        (victim / name).write_text("kept")

    def make(path):
        is_file = "." in path.name
        target = victim / "file" if is_file else victim
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            shutil.copy(path, target)
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        before.update({each: each.read_bytes() for each in victim.iterdir()})

    before = {}
    yield make
    assert {each: each.read_bytes() for each in victim.iterdir()} == before


IN_A_RUN = (
    "model", "model-task-1", "model-task-2", "details", "evaluation", "tensorboard", "model-task-1/model.json",
    "details/task-1.npz", "config.yaml", "checkpoint.pt", "checkpoint-previous.pt", "history.jsonl", "skipped.jsonl",
    "metrics.json", "environment.json", ".lock",
)  # fmt: skip


@pytest.mark.parametrize("name", IN_A_RUN)
def test_an_interrupted_run(link, stopped_run, tmp_path, name):
    folder = shutil.copytree(stopped_run, tmp_path / "run")
    link(folder / name)
    with pytest.raises(UserError, match=rf"^{folder}/{name} is a link, which is not followed: delete it, or put what "):
        engine.resume(folder)
    with pytest.raises(UserError, match="is a link"), engine.RunFolder(folder).new(overwrite=True):
        pass
    (folder / name).unlink()
    (tmp_path / "disk").symlink_to(tmp_path)  # the folder itself may be given by a link
    with engine.RunFolder(tmp_path / "disk" / "run").locked():
        pass


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("model", ("evaluate", "copy", "--stream", "scenes")),
        ("evaluation", ("evaluate", "copy", "--stream", "scenes")),
        ("model", ("calibrate", "copy", "--stream", "scenes")),
        ("model/model.json", ("calibrate", "copy", "--stream", "scenes")),
        ("model/model.safetensors", ("predict", "copy", "x.jpg")),
        ("model", ("serve", "copy")),
        ("model", ("export", "copy", "--format", "safetensors", "--out", "new")),
        ("../old/model.onnx", ("export", "copy", "--out", "old", "--overwrite")),
        ("details", ("train", "--method", "agcn", *SMALL, "--out", "copy", "--overwrite")),
        ("checkpoint.pt", ("extend", "copy", "new.csv", "--out", "new")),
        ("metrics.json", ("report", "copy", "--out", "report")),
        ("../report/figures", ("report", "copy", "--out", "report")),
        ("../report/table.md", ("report", "copy", "--out", "report")),
        ("../many/agcn-s0", ("compare", "--methods", "agcn", *SMALL, "--out", "many")),
        ("../many/slurm", ("compare", "--methods", "agcn", *SMALL, "--out", "many", "--on", "slurm", "--dry-run")),
        ("../board/scenes-plain", ("leaderboard", "--fidelities", "plain", "--methods", "er", "--out", "board")),
        ("../search/trials", ("tune", "--method", "er", "--out", "search", "--trials", "1", *SMALL)),
        ("../scores.json", ("metrics", "scores.npz", "--json", "scores.json")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)  # fmt: skip
def test_a_command(link, refused, agcn_copy, tmp_path, monkeypatch, name, command):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "scores.npz", scores=np.eye(2), labels=np.eye(2, dtype=bool))
    (tmp_path / "x.jpg").write_bytes(b"an image")
    link(agcn_copy / name)
    line = refused(*command)
    assert f"{os.path.normpath(name).rpartition('/')[2]} is a link, which is not followed" in line


def test_what_is_checked_by_its_digest(link, agcn_copy):
    link(agcn_copy / "details/task-1.npz")
    checks = {check.name: check.found for check in verify(agcn_copy, score=False).checks}
    assert "task-1.npz is a link" in checks["files"]
