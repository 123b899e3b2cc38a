"""`lifelabel data`: its output, its files, and mistakes."""

import json
import subprocess
import sys

import pytest
from PIL import Image

from lifelabel.streams import build

SMALL = {"classes": 4, "tasks": 2, "train_images": 20, "test_images": 20}
SCENES = ("scenes", *(f"--set={'stream.' * (name == 'tasks')}{name}={value}" for name, value in SMALL.items()))
WRITTEN = {"report.md", "stream.json", "frequencies.png", "cooccurrence.png"}


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def main(main):
    """`lifelabel data ARGS`."""
    return lambda *args: main("data", *args)


@pytest.fixture
def published(tmp_path):
    """A split in the authors' format: two tasks of two classes, with the photographs of the first task only."""
    files = {
        "task0/train.csv": ["a.jpg,1,0", "b.jpg,1,1", "c.jpg,0,1"],
        "task0/test.csv": ["t.jpg,1,0"],
        "task1/train.csv": ["d.jpg,0,1", "e.jpg,1,0"],
        "task1/test.csv": ["t.jpg,1,0,0,1", "u.jpg,0,1,1,0"],
    }
    for name, lines in files.items():
        path = tmp_path / "split" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("a.jpg", "b.jpg", "t.jpg"):
        Image.new("RGB", (40, 30), "red").save(photos / name)
    (photos / "c.jpg").write_bytes((photos / "a.jpg").read_bytes()[:200])
    return tmp_path / "split"


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_inspect_prints_a_summary_and_writes_the_report(output, tmp_path):
    folder = tmp_path / "runs" / "inspect" / "scenes"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (folder / "report.md").write_text("an older one")
    text = output("inspect", *SCENES)
    stream = build("scenes", SMALL)
    assert text.startswith(f"scenes\nsha256 {stream.fingerprint}\n")
    assert text.endswith("\nwritten to runs/inspect/scenes: report.md, stream.json and 4 figures\n")
    assert names(folder) == WRITTEN | {"task-1.png", "task-2.png", "notes.txt"}
    assert (folder / "notes.txt").read_text() == "mine"
    found = json.loads((folder / "stream.json").read_text())
    assert found["sha256"] == stream.fingerprint
    assert found["splits"]["train"] == {"images": 20, "rows": 20, "missing": 0}
    assert found["bad"] is None
    page = (folder / "report.md").read_text(encoding="utf-8")
    assert page.startswith("# Stream scenes\n")
    assert all(f"]({name})" in page for name in names(folder) if name.endswith(".png"))


def test_inspect_of_a_published_split_with_some_photographs(output, published, tmp_path):
    text = output("inspect", published, "--root", tmp_path / "photos", "--decode", "--out", tmp_path / "look")
    found = json.loads((tmp_path / "look" / "stream.json").read_text())
    assert [task["train"] for task in found["tasks"]] == [3, 2]
    assert [task["test_cumulative"] for task in found["tasks"]] == [1, 2]
    assert found["splits"]["train"]["missing"] == 2
    assert found["splits"]["test"]["missing"] == 1
    assert found["labels_per_image"]["visible"] == 6 / 5
    assert found["hidden"]["labels"] is None
    assert found["bad"]["opened"] == 4
    assert [bad["image"] for bad in found["bad"]["images"]] == ["c.jpg"]
    assert "opened 4 images, 1 of them cannot be used" in text
    assert names(tmp_path / "look") == WRITTEN | {"task-1.png", "missing.txt"}  # task 2 has no photograph


def test_inspect_of_a_table_prints_that_files_are_missing(main, output, tmp_path):
    (tmp_path / "photos").mkdir()
    rows = [f"{i}.png,{'xy'[i % 2]},{'train' if i < 4 else 'test'}" for i in range(6)]
    (tmp_path / "t.csv").write_text("\n".join(["image,labels,split", *rows]) + "\n")
    for i in range(5):
        Image.new("RGB", (40, 30), "red").save(tmp_path / "photos" / f"{i}.png")
    expected = {
        (): ["6 of 6 images have no file, such as 0.png: give --root DIR, their folder (no --root was given)"],
        ("--root", "photos"): ["1 of 6 images have no file, such as photos/5.png: correct --root or the names"],
    }
    for root, problems in expected.items():
        text = output("inspect", "t.csv", *root, "--no-sheets", "--out", "look")
        assert f"problem: {problems[0]}" in " ".join(text.split())
        assert json.loads((tmp_path / "look" / "stream.json").read_text())["problems"] == problems
        missing = (tmp_path / "look" / "missing.txt").read_text().splitlines()
        assert sorted(missing) == ([f"{i}.png" for i in range(6)] if not root else ["5.png"])
        assert f"missing.txt ({len(missing)} image" in " ".join(text.split())
    (tmp_path / "t.csv").write_text("\n".join(["image,labels,split", *rows[:5]]) + "\n")
    assert main("inspect", "t.csv", "--root", "photos", "--no-sheets", "--out", "look").returncode == 0
    assert not (tmp_path / "look" / "missing.txt").exists()


@pytest.mark.parametrize(
    "rows", [["x,", "x,"], ["x,1", "y;x,1"], ["x,", "y,", "x;y;z,"]], ids=["one class", "one task", "few classes"]
)
def test_a_small_table_needs_no_option(output, tmp_path, rows):
    lines = [f"{split}-{i}.png,{split},{row}\n" for split in ("train", "test") for i, row in enumerate(rows)]
    (tmp_path / "t.csv").write_text("image,split,labels,task\n" + "".join(lines))
    output("inspect", "t.csv", "--no-sheets")


def test_inspect_without_sheets(main, tmp_path):
    assert main("inspect", *SCENES, "--no-sheets", "--out", tmp_path / "look").returncode == 0
    assert names(tmp_path / "look") == WRITTEN


def test_build_writes_a_manifest_that_is_the_same_stream(main, output, tmp_path):
    stream, path = build("scenes", SMALL), tmp_path / "new" / "stream.yaml"
    first, *_, digest, last = output("build", *SCENES, "--out", path).splitlines()
    assert first == "scenes: 2 tasks, 4 classes, 20 training and 20 test images"
    assert digest == f"sha256 {stream.fingerprint}"
    assert last == f"manifest: {path}"
    again = build(str(path), {})
    assert again.fingerprint == stream.fingerprint
    assert not again.train.complete
    assert main("build", *SCENES, "--complete", "--out", path, "--overwrite").returncode == 0
    again = build(str(path), {})
    assert again.fingerprint == stream.fingerprint and again.train.complete
    assert len(again.train.labels.column) == len(stream.train.labels.column)


def test_build_replaces_a_file_only_with_overwrite(refused, tmp_path):
    path = tmp_path / "stream.yaml"
    path.write_text("mine")
    assert refused("build", *SCENES, "--out", path) == f"{path} exists: give another --out, or --overwrite"
    assert path.read_text() == "mine"


def test_build_prints_problems(output, published, tmp_path):
    train = published / "task1" / "train.csv"
    train.write_text(train.read_text() + "d.jpg,0,1\n")
    text = output("build", published, "--out", tmp_path / "stream.yaml")
    assert "problem: 1 row" in text
    assert "d.jpg" in text


MISTAKES = {
    "inspect scene": "did you mean 'scenes'?",
    "inspect scenes --set train_image=60": "did you mean 'train_images'?",
    "inspect scenes --set stream.train_images=x": "stream.train_images must be a whole number, not 'x'",
    "inspect scenes --set method.mix=0.1": "--set method.…: this command has no method; give only options of the "
    "stream",
    "inspect scenes --set train_images": "--set takes NAME=VALUE, not 'train_images'",
    "inspect nowhere/stream.yaml": "nowhere/stream.yaml",
    "build scenes": "--out",
    "inspect": "STREAM",
    "": "Missing command",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_one_line(refused, words, tmp_path):
    assert MISTAKES[words] in refused(*words.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("args", [["inspect", *SCENES, "--out"], ["build", *SCENES, "--out"]], ids=lambda args: args[0])
def test_an_out_folder_below_a_file(refused, tmp_path, args):
    (tmp_path / "file").write_text("mine")
    assert "cannot write" in refused(*args, tmp_path / "file" / "inside.yaml")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_with_the_name_of_an_output_file(refused, tmp_path):
    path = tmp_path / "look" / "frequencies.png"
    path.mkdir(parents=True)
    line = refused("inspect", *SCENES, "--no-sheets", "--out", tmp_path / "look")
    assert line.startswith(f"cannot write {path}: Is a directory; ")


def test_build_imports_no_torch():
    code = "import sys; from lifelabel.cli.main import app; app(sys.argv[1:], standalone_mode=False)"
    code += "; print('loaded:', [name for name in ('torch',) if name in sys.modules])"
    words = [sys.executable, "-c", code, "data", "build", *SCENES, "--out", "stream.yaml"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "loaded: []"), done.stderr


def test_tasks_is_a_flag(main, tmp_path):
    assert main("build", "scenes", *SCENES[1:], "--tasks", "4", "--out", tmp_path / "a.yaml").returncode == 0
    assert len(build(str(tmp_path / "a.yaml"), {}).tasks) == 2  # --set wins over a flag
    assert main("build", "scenes", "--tasks", "4", "--set", "classes=8", "--out", tmp_path / "b.yaml").returncode == 0
    assert len(build(str(tmp_path / "b.yaml"), {}).tasks) == 4


def test_a_manifest_must_end_in_yaml(refused, tmp_path):
    assert "must end in .yaml" in refused("build", *SCENES, "--out", tmp_path / "stream.txt")
    assert not list(tmp_path.iterdir())
