import csv
import errno
import io
import json
import os
import shutil
import signal
import subprocess

import pytest
from PIL import Image
from rich.console import Console
from support import command_server, models

import lifelabel
from lifelabel.images.arguments import image_files
from lifelabel.streams.table import read


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder. It must not be changed."""
    path = tmp_path_factory.mktemp("model") / "run"
    models.write(path / "model")
    return path


@pytest.fixture
def images(tmp_path, monkeypatch):
    """Six images in two folders, and a text file. The current folder is the one above."""
    monkeypatch.chdir(tmp_path)
    models.write_images(tmp_path / "photos", 4)
    models.write_images(tmp_path / "photos" / "b" / "c", 2, suffix=".JPG", seed=1)
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    (tmp_path / "photos" / ".hidden.png").write_bytes(b"no image")
    return tmp_path / "photos"


PATHS = ["photos/0.png", "photos/1.png", "photos/2.png", "photos/3.png", "photos/b/c/0.JPG", "photos/b/c/1.JPG"]


def read_json(done):
    return {line["image"]: line["labels"] for line in map(json.loads, done.stdout.splitlines())}


def test_one_line_per_image(main, folder, images):
    done = main("predict", folder, "photos", "--threshold", 0, "--device", "cpu")
    assert done.returncode == 0 and done.stderr == ""
    model = lifelabel.load(folder, "cpu")
    lines = []
    for path in PATHS:
        labels = "  ".join(f"{name} {value:.2f}" for name, value in model.predict(path, threshold=0).items())
        lines.append(f"{path:16}  {labels}")
    assert done.stdout.splitlines() == lines
    none = main("predict", folder, "photos/0.png", "--threshold", 1)
    assert none.stdout == "photos/0.png  –\n"


@pytest.mark.parametrize("command", ["predict", "evaluate", "calibrate", "export", "serve"])
def test_an_edited_model_is_refused(refused, folder, images, tmp_path, command):
    """Each command that loads a model checks the digest of model.json."""
    shutil.copytree(folder, tmp_path / "run")
    path = tmp_path / "run/model/model.json"
    path.write_text(path.read_text().replace(models.CLASSES[0], "x"))
    more = {"predict": ["photos"], "export": ["--out", "x"], "serve": ["--port", "0"]}.get(command, ["photos.csv"])
    (tmp_path / "photos.csv").write_text("image,labels\n")
    assert refused(command, tmp_path / "run", *more) == f"{path} is damaged or was edited: copy the model again"


def test_json_lines_and_a_csv_table_have_the_labels_of_the_model(output, folder, images, tmp_path):
    model = lifelabel.load(folder, "cpu")
    expected = {path: pytest.approx(model.predict(path, top=2), abs=1e-5) for path in PATHS}
    lines = [json.loads(line) for line in output("predict", folder, "photos", "--json", "--top", 2).splitlines()]
    assert [line["image"] for line in lines] == PATHS
    assert {line["image"]: line["labels"] for line in lines} == expected
    text = output("predict", folder, "photos", "--csv", "--top", 2)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["image"] for row in rows] == PATHS
    for row in rows:
        labels, probabilities = row["labels"].split(";"), map(float, row["probabilities"].split(";"))
        assert dict(zip(labels, probabilities, strict=True)) == expected[row["image"]]
    (tmp_path / "labels.csv").write_text(text)
    collection = read(tmp_path / "labels.csv", None, required=())  # it can be read as a table of a stream
    assert set(collection.classes) == {name for row in rows for name in row["labels"].split(";")}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["photos/1.png"], PATHS[1:2]),
        (["photos/b", "photos/1.png"], [*PATHS[4:], PATHS[1]]),
        (["photos/*.png"], PATHS[:4]),
        (["photos/**/*.JPG"], PATHS[4:]),
        (["photos/**"], sorted(PATHS)),
        (["phot*"], PATHS),
        (["photos/[12].*"], PATHS[1:3]),
        (["photos/notes.txt"], ["photos/notes.txt"]),
        (["./photos/b/c"], ["./photos/b/c/0.JPG", "./photos/b/c/1.JPG"]),
    ],
)
def test_files_folders_and_patterns(images, arguments, expected):
    problems = []
    assert list(image_files(arguments, lambda *problem: problems.append(problem))) == expected and not problems


def test_arguments_without_an_image(images):
    problems = []
    (images / "empty").mkdir()
    (images / "phone").mkdir()
    (images / "phone" / "1.HEIC").touch()  # is opened, for the message that it is not read
    arguments = ["photos/9.png", "photos/*.gif", "photos/empty", "photos/0.png", "photos/phone"]
    found = list(image_files(arguments, lambda *problem: problems.append(problem)))
    assert found == ["photos/0.png", "photos/phone/1.HEIC"]
    reasons = ["no such file", "no image matches", "no image in this folder"]
    assert problems == list(zip(arguments, reasons, strict=False))


def test_a_folder_with_a_pattern_in_its_name(images):
    images.rename(images.parent / "a[1]")
    assert len(list(image_files(["a[1]"], print))) == 6 and list(image_files(["a[1]/0.png"], print)) == ["a[1]/0.png"]


def test_files_are_listed_when_they_are_needed(tmp_path, monkeypatch):
    """In blocks, each sorted; linked folders, which may contain themselves, are left out."""
    monkeypatch.setattr("lifelabel.images.arguments._BLOCK", 10)
    for number in range(35):
        (tmp_path / f"{number:02}.jpg").write_bytes(b"")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = [os.path.basename(path) for path in image_files([str(tmp_path)], print)]
    assert sorted(found) == [f"{number:02}.jpg" for number in range(35)]
    assert all(found[start : start + 10] == sorted(found[start : start + 10]) for start in range(0, 35, 10))


def test_paths_on_stdin(lifelabel, folder, images):
    given = "photos/0.png\n\nphotos/b/c/1.JPG\r\nphotos/none.png\n"
    done = lifelabel("predict", folder, "-", "--json", input=given)
    assert list(read_json(done)) == ["photos/0.png", "photos/b/c/1.JPG"] and done.returncode == 1
    assert done.stderr == "1 without labels:\n  photos/none.png: no such file\n"


def test_bad_files_are_listed_at_the_end(main, folder, images):
    (images / "bad\x1b[2J.png").write_bytes(b"no image")
    (images / "0.png").write_bytes((images / "0.png").read_bytes()[:100])
    done = main("predict", folder, "photos", "none.png", "x*.png", "--json")
    assert done.returncode == 1 and list(read_json(done)) == PATHS[1:]
    lines = done.stderr.splitlines()
    assert lines[0] == "4 without labels:" and len(lines) == 5 and "\x1b" not in done.stderr
    assert "  photos/0.png: truncated" in lines and "  none.png: no such file" in lines
    assert "  x*.png: no image matches" in lines


def test_only_the_first_bad_files_are_listed(main, folder, images):
    for number in range(30):
        (images / f"bad{number:02}.png").write_bytes(b"no image")
    done = main("predict", folder, "photos")
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and lines[0] == "30 without labels:" and len(lines) == 22
    assert lines[-1] == "  … and 10 more" and len(done.stdout.splitlines()) == 6


def test_no_image_at_all_is_one_line(refused, lifelabel, error_line, folder, images):
    assert refused("predict", folder, "none.png") == "no images: none.png: no such file"
    assert refused("predict", folder, "a.png", "*.gif") == "no images: a.png: no such file; 1 more"
    (images / "empty").mkdir()
    assert refused("predict", folder, "photos/empty") == "no images: photos/empty: no image in this folder"
    assert error_line(lifelabel("predict", folder, "-", input="")) == "no images: stdin has no paths"
    assert error_line(lifelabel("predict", folder, "-", input="a\n")) == "no images: a: no such file"


MISTAKES = {
    "--threshold 1.5": "threshold must be 0 to 1, not 1.5",
    "--threshold high": "Invalid value for '--threshold'",
    "--top 0": "top must be at least 1, not 0",
    "--json --csv": "--json, --csv and --table: give one of them",
    "--out x.json": "--out x.json: the name must end in .csv, .jsonl (one JSON object per line) or .txt",
    "--out x.csv --json": "--out x.csv: the name must end in .jsonl",
    "--batch-size 0": "--batch-size must be at least 1, not 0",
    "--batch-size 5000": "batch_size must be 1 to 4,096",
    "--workers -1": "--workers must be at least 0, not -1",
    "--device tpu": "device",
    "--plugin none.py": "there is no plug-in file none.py",
}


@pytest.mark.parametrize("flags", MISTAKES)
def test_wrong_values_are_one_line(refused, folder, images, flags):
    assert MISTAKES[flags] in refused("predict", folder, "photos", *flags.split())


def test_a_folder_without_a_model_is_one_line(refused, images):
    assert "has no model" in refused("predict", "photos", "photos")


@pytest.mark.parametrize("flags", [[], ["--json"], ["--csv"]])
def test_names_cannot_control_the_terminal(output, tmp_path, monkeypatch, flags):
    monkeypatch.chdir(tmp_path)
    models.write(tmp_path / "model", classes=("[red]sky", "a,b", '"c"', "é", "=1+1"))
    models.write_images(tmp_path / "photos", 1)
    (tmp_path / "photos" / "0.png").rename(tmp_path / "photos" / "a[bold]\x07é.png")
    text = output("predict", "model", "photos", "--top", 5, *flags)
    if flags == ["--csv"]:
        (row,) = csv.DictReader(io.StringIO(text))
        assert sorted(row["labels"].split(";")) == sorted(("[red]sky", "a,b", '"c"', "é", "=1+1"))
        assert row["image"] == "photos/a[bold]\x07é.png"
    else:
        assert "\x07" not in text and "[red]sky" in text and "a[bold]" in text


def test_file_names_that_are_not_utf_8(folder, tmp_path):
    """Three commands in one process, which takes seconds to start: another locale is read at the start."""
    models.write_images(tmp_path, 1)
    name = os.fsdecode(b"caf\xe9.png")
    (tmp_path / "0.png").rename(tmp_path / name)
    code = """
import sys
from lifelabel.cli.main import main
words = sys.argv[1:]
for flags in ([], ["--json"], ["--csv"]):
    sys.argv = ["lifelabel", *words, *flags]
    try:
        main()
    except SystemExit as end:
        assert not end.code, flags
    print("END", flush=True)
"""
    environment = {**os.environ, "LC_ALL": "C"}
    words = ("predict", folder, tmp_path)
    done = command_server.run(
        *words, code=code, capture_output=True, encoding="utf-8", errors="surrogateescape", env=environment
    )
    assert done.returncode == 0, done.stderr
    text, as_json, as_csv, _ = done.stdout.split("END\n")
    assert "caf\ufffd.png" in text
    for row in (json.loads(as_json), next(csv.DictReader(io.StringIO(as_csv)))):
        assert row["image"] == str(tmp_path / name)


def test_a_reader_that_ends_is_no_error(folder, images):
    """As `lifelabel predict … | head -1`."""
    many = images.parent / "many.txt"
    many.write_text("photos/0.png\n" * 20_000)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with open(many) as paths, command_server.start("predict", folder, "-", "--json", stdin=paths, **pipes) as process:
        assert json.loads(process.stdout.readline())
        process.stdout.close()
        assert (process.stderr.read(), process.wait(120)) == ("", 0)


def test_ctrl_c_is_one_line_and_keeps_what_was_printed(folder, images):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = command_server.start("predict", folder, "-", "--batch-size", 1, text=True, bufsize=1, **pipes)
    try:
        process.stdin.write("photos/0.png\n")
        process.stdin.flush()
        # the pipe is read ahead, so a second path makes the first line of output appear
        process.stdin.write("photos/1.png\n" * 4500)  # as many as a pipe holds
        process.stdin.flush()
        assert process.stdout.readline().startswith("photos/0.png")
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert error.startswith("stopped after ") and error.endswith((" image\n", " images\n")) and error.count("\n") == 1
    assert all(line.startswith("photos/1.png") for line in out.splitlines())


def test_annotated_copies(output, folder, images):
    (images / "b" / "0.png").write_bytes((images / "0.png").read_bytes())
    output("predict", folder, "photos", "../" + images.parent.name + "/photos/1.png", "--annotate", "out")
    names = ["0-2.jpg", "0-3.jpg", "0.jpg", "1-2.jpg", "1-3.jpg", "1.jpg", "2.jpg", "3.jpg"]
    assert sorted(os.listdir("out")) == names and sorted(os.listdir()) == ["out", "photos"]
    with Image.open("out/0.jpg") as copy:
        assert copy.format == "JPEG" and copy.size == (320, 320)


def test_copies_are_not_taken_for_images_and_replace_nothing(output, refused, folder, images):
    """The folder of the copies may be among the images."""
    text = output("predict", folder, "photos", "photos/**", "--annotate", "photos/out")
    assert len(text.splitlines()) == 12 and len(os.listdir("photos/out")) == 12
    assert refused("predict", folder, "photos", "--annotate", "photos") == (
        "no images: photos: no image in this folder"
    )  # nothing is overwritten
    message = refused("predict", folder, "photos/0.png", "--annotate", "photos/out")
    assert message == "--annotate photos/out has files already: give a new folder"
    assert "cannot write to" in refused("predict", folder, "photos/0.png", "--annotate", "photos/0.png/x")


def test_a_progress_bar_in_a_terminal_only(main, output, folder, images, monkeypatch):
    """On stderr, and only if the output goes elsewhere: lines and a bar would disturb each other."""
    monkeypatch.setattr("lifelabel.cli.predict._BAR_FROM", 6)
    assert main("predict", folder, "photos").stderr == ""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr("lifelabel.cli.predict.err", console)
    monkeypatch.setattr("lifelabel.cli.common.err", console)
    text = output("predict", folder, "photos")
    assert len(text.splitlines()) == 6 and "6/6" in screen.getvalue()


def test_a_folder_that_cannot_be_read_is_listed(main, refused, folder, images, monkeypatch):
    def scandir(path, scan=os.scandir):
        if str(path).endswith("c"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr("lifelabel.images.arguments.os.scandir", scandir)
    done = main("predict", folder, "photos", "--json")
    assert done.returncode == 1 and list(read_json(done)) == PATHS[:4]
    assert done.stderr == "1 without labels:\n  photos/b/c: cannot be read (Permission denied)\n"
    message = "no images: photos/b/c: cannot be read (Permission denied)"
    assert refused("predict", folder, "photos/b/c") == message


def test_a_class_name_with_the_separator_has_no_csv_table(main, refused, images, tmp_path):
    models.write(tmp_path / "model", classes=("a;b", "c", "d", "e", "f"))
    message = "the class 'a;b' has a ;, which separates labels in the table of --csv: use --json"
    assert refused("predict", "model", "photos", "--csv") == message
    assert "a;b" in read_json(main("predict", "model", "photos/0.png", "--json", "--top", 5))["photos/0.png"]


def test_a_path_with_a_null_byte_is_listed(lifelabel, folder, images):
    done = lifelabel("predict", folder, "-", "--json", input="photos/0.png\nphotos/1.png\0photos/2.png\0\n")
    assert list(read_json(done)) == ["photos/0.png"] and done.returncode == 1
    assert done.stderr.startswith("1 without labels:\n") and done.stderr.endswith(": not a path\n")


def test_without_results_nothing_is_written(lifelabel, folder, images):
    done = lifelabel("predict", folder, "-", "--out", "labels/x.csv", "--annotate", "out", input="none.png\n")
    assert (done.returncode, done.stdout) == (2, "") and not os.path.exists("out") and not os.path.exists("labels")


@pytest.mark.parametrize(("suffix", "flag"), [(".csv", "--csv"), (".jsonl", "--json"), (".txt", "--table")])
def test_a_file_has_what_the_command_prints(main, refused, folder, images, suffix, flag):
    (images / "bad.png").write_bytes(b"no image")
    name = f"new/labels{suffix}"
    done = main("predict", folder, "photos", "--out", name)
    assert (done.returncode, done.stdout) == (1, f"6 images in {name}\n") and "1 without labels" in done.stderr
    with open(name, encoding="utf-8") as file:
        assert file.read() == main("predict", folder, "photos", flag).stdout
    assert os.listdir("new") == [f"labels{suffix}"]
    assert refused("predict", folder, "photos", "--out", name) == f"{name} exists: give another --out, or --overwrite"
    done = main("predict", folder, "photos/0.png", "--out", name, flag, "--overwrite")
    assert (done.returncode, done.stdout) == (0, f"1 image in {name}\n")


def test_a_file_is_written_whole_or_not_at_all(main, folder, images, monkeypatch):
    def stop(path, labels):
        raise KeyboardInterrupt

    monkeypatch.setattr("lifelabel.cli.predict._annotator", lambda folder: stop)
    done = main("predict", folder, "photos", "--out", "labels.csv", "--annotate", "x")
    assert (done.returncode, done.stderr) == (130, "stopped after 0 images; labels.csv is not written\n")
    assert os.listdir() == ["photos"]
