"""Damaged, missing and malicious files, given to the real commands.

Usable images are used, and the others are listed with the reason. No command blocks, reads outside the folder of the
images, or ends in a traceback.
"""

import json
import os
import shutil
import signal
import struct
import zipfile
import zlib
from collections import Counter

import numpy as np
import pytest
from conftest import SMALL
from PIL import Image

from lifelabel.streams import build, protocols
from lifelabel.utils.text import counted

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes"),
    # pytest removes the filters with which the command itself suppresses this warning
    pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning"),
]

BOAT, CAT, DOG, GHOST = "bâteau, à voile", "chat", "dog", "fantôme"
"""Two tasks of two classes. No training image has the last one."""
ORDER = f"{CAT}\n{BOAT}\n\n{DOG}\n{GHOST}\n"

USED = {
    "plain 1.jpg": CAT, "plain 2.jpg": CAT, "plain 3.jpg": CAT, "cmyk.jpg": f"{BOAT};{CAT}", "grey.jpg": BOAT,
    "sixteen bits.png": CAT, "animated.gif": DOG, "été, à côté/rotated.jpg": DOG, "clear.png": DOG, "a png.jpg": DOG,
    "plain 4.jpg": f"{DOG};{CAT}", "palette.png": f"{BOAT};{DOG}", "nothing.png": "",
}  # fmt: skip
BAD = {
    "corrupt.jpg": "corrupt", "truncated.jpg": "truncated", "empty.jpg": "an empty file",
    "pipe.jpg": "not a regular file", "folder.jpg": "not a regular file", "page.jpg": "not an image of a known format",
    "large.png": "more than 100 megapixels", "bomb.png": "more than 100 megapixels", "gone.jpg": "no such file",
}  # fmt: skip
TEST = {"test 1.jpg": CAT, "test 2.jpg": f"{DOG};{GHOST}", "test 3.jpg": f"{BOAT};{DOG}", "test 4.jpg": DOG}
BAD_TEST = {"truncated test.png": "truncated", "gone test.jpg": "no such file"}
ROWS = (
    "short.jpg,dog",
    "unknown.jpg,dog,elsewhere",
    "../secret.jpg,dog,train",
    "/etc/passwd,dog,train",
    "C:\\secret.jpg,dog,train",
    ",dog,train",
    "plain 1.jpg,chat,train",
    "plain 1.jpg,dog,test",
    '"one\ntwo.jpg",dog,train',
)
PROBLEMS = {
    "rows with fewer fields than the header": 1,
    "rows whose split is neither train, val nor test": 1,
    "rows with an image path that is not allowed": 4,
    "rows without an image": 1,
    "rows that repeat an earlier one": 1,
    "rows that give an image another split or task; its first row counts": 1,
    protocols._NEGATIVES: 1,
    "classes without a training image": 1,
    "classes that no training image of their task shows": 1,
}

MODEL = ("--backbone", "tiny", "--weights", "none", "--image-size", "32", "--device", "cpu", "--batch-size", "4", "-q")
MODEL += ("--max-skipped", "1")


def make_image(seed, mode="RGB", size=(48, 36)):
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(noise).convert(mode)


def png_of(width, height):
    """A PNG with this size in its header, and data for only a few pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(bytes(999))), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def write_used(root):
    for seed, name in enumerate([*USED, *TEST]):
        if name.startswith(("plain", "test")):
            make_image(seed).save(root / name)
    make_image(50, "CMYK").save(root / "cmyk.jpg")
    make_image(51, "L").save(root / "grey.jpg")
    Image.fromarray(np.random.default_rng(52).integers(0, 65536, (30, 40), np.uint16)).save(root / "sixteen bits.png")
    make_image(53, "P").save(
        root / "animated.gif", save_all=True, append_images=[make_image(54, "P"), make_image(55, "P")]
    )
    (root / "été, à côté").mkdir()
    exif = Image.Exif()
    exif[274] = 6
    make_image(56).save(root / "été, à côté/rotated.jpg", exif=exif)
    make_image(57, "RGBA").save(root / "clear.png")
    make_image(58).save(root / "a png.jpg", format="PNG")
    make_image(59, "P").save(root / "palette.png")
    make_image(61).save(root / "nothing.png")


def write_bad(root):
    whole = (root / "plain 1.jpg").read_bytes()
    (root / "corrupt.jpg").write_bytes(whole[:3] + bytes(400))
    (root / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "empty.jpg").write_bytes(b"")
    os.mkfifo(root / "pipe.jpg")
    (root / "folder.jpg").mkdir()
    (root / "page.jpg").write_text("<html>404</html>")
    (root / "large.png").write_bytes(png_of(11_000, 11_000))
    (root / "bomb.png").write_bytes(png_of(60_000, 60_000))
    make_image(60).save(root / "truncated test.png")
    whole = (root / "truncated test.png").read_bytes()
    (root / "truncated test.png").write_bytes(whole[: len(whole) // 2])


def table(path, train, test, rows=()):
    lines = ["image,labels,split"]
    for part, images in (("train", train), ("test", test)):
        lines += [f'"{name}","{labels}",{part}' for name, labels in images.items()]
    path.write_text("\n".join([*lines, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The folder: photos/, photos.csv, order.txt, and secret.jpg, which is outside photos/."""
    folder = tmp_path_factory.mktemp("hostile")
    root = folder / "photos"
    root.mkdir()
    write_used(root)
    write_bad(root)
    make_image(70).save(folder / "secret.jpg")
    labels = {name: f"{CAT};{DOG}" for name in (*BAD, *BAD_TEST)}
    train = USED | {name: labels[name] for name in BAD}
    table(folder / "photos.csv", train, TEST | {name: labels[name] for name in BAD_TEST}, ROWS)
    (folder / "order.txt").write_text(ORDER, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def time_limit():
    """Fail after 60 s: reading a named pipe would block for ever."""

    def late(number, frame):
        pytest.fail("a command blocks")  # not an OSError, which would count as a bad file

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def trained(main, folder, out, *args):
    stream = ("--stream", folder / "photos.csv", "--root", folder / "photos")
    order = ("--set", f"stream.order={folder / 'order.txt'}")
    done = main("train", *stream, *order, *MODEL, *args, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def run(hostile, lifelabel, tmp_path_factory):
    """The folder of a run on this stream, made in its own process without a message. It must not be changed."""

    def quiet(*args):
        done = lifelabel(*args, timeout=60)
        assert done.stderr == ""
        return done

    return trained(quiet, hostile, tmp_path_factory.mktemp("run") / "whole")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def skipped(folder):
    return {(line["split"], line["image"], line["reason"]) for line in lines(folder / "skipped.jsonl")}


EXPECTED = {("train", *image) for image in BAD.items()} | {("test", *image) for image in BAD_TEST.items()}


# Inspection


def test_inspect_counts_every_kind_of_problem(output, hostile, tmp_path):
    stream = (hostile / "photos.csv", "--root", hostile / "photos", "--set", f"order={hostile / 'order.txt'}")
    look = tmp_path / "look"
    output("data", "inspect", *stream, "--decode", "--out", look)
    found = json.loads((look / "stream.json").read_text())
    assert found["splits"] == {
        "train": {"images": len(USED) + len(BAD), "rows": len(USED) + len(BAD), "missing": 1},
        "test": {"images": len(TEST) + len(BAD_TEST), "rows": len(TEST) + len(BAD_TEST), "missing": 1},
    }
    unreadable = EXPECTED - {image for image in EXPECTED if image[2] == "no such file"}
    assert found["bad"]["opened"] == len(USED) + len(TEST) + len(unreadable)
    assert {(image["split"], image["image"], image["reason"]) for image in found["bad"]["images"]} == unreadable
    assert found["bad"]["reasons"] == Counter(reason for *_, reason in unreadable)
    assert [task["classes"] for task in found["tasks"]] == [[CAT, BOAT], [DOG, GHOST]]
    (missing,) = [line for line in found["problems"] if "have no file" in line]
    assert missing.startswith(f"2 of {len(USED) + len(TEST) + len(EXPECTED)} images have no file, such as ")
    others = [line for line in found["problems"] if line != missing]
    assert {line.split(":")[0] for line in others} == {counted(count, kind) for kind, count in PROBLEMS.items()}
    assert {"task-1.png", "task-2.png"} < {path.name for path in look.iterdir()}


# Training


def test_train_uses_the_good_images_and_lists_the_bad_ones(run):
    assert skipped(run) == EXPECTED
    assert len(lines(run / "skipped.jsonl")) == len(EXPECTED)
    environment = json.loads((run / "environment.json").read_text())
    missing = sum(reason == "no such file" for *_, reason in EXPECTED)
    assert (environment["images_missing"], environment["images_skipped"]) == (missing, len(EXPECTED) - missing)
    assert lines(run / "history.jsonl")[-1]["images"] == len(USED)
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["finished"] and metrics["classes"] == [CAT, BOAT, DOG, GHOST]
    assert 0 < metrics["final"]["mAP"] <= 1


def test_workers_and_a_manifest_make_the_same_run(main, hostile, run, tmp_path):
    trained(main, hostile, tmp_path / "workers", "--workers", "2")
    order = ("--set", f"order={hostile / 'order.txt'}")
    written = main("data", "build", hostile / "photos.csv", "--complete", *order, "--out", tmp_path / "photos.yaml")
    assert written.returncode == 0, written.stderr
    digest = json.loads((run / "environment.json").read_text())["stream_fingerprint"]
    assert f"sha256 {digest}\n" in written.stdout
    args = ("--stream", tmp_path / "photos.yaml", "--root", hostile / "photos", *MODEL)
    assert main("train", *args, "--out", tmp_path / "manifest").returncode == 0
    for other in ("workers", "manifest"):
        for name in ("metrics.json", "history.jsonl", "skipped.jsonl"):
            assert (tmp_path / other / name).read_bytes() == (run / name).read_bytes(), (other, name)


@pytest.mark.parametrize(("name", "reason"), [image for image in BAD.items() if image[1] != "no such file"])
def test_strict_stops_with_the_file_and_the_reason(refused, hostile, tmp_path, name, reason):
    path = table(hostile / "strict.csv", {"plain 1.jpg": CAT, name: CAT}, TEST)
    args = ("--stream", path, "--root", hostile / "photos", "--set", "stream.tasks=1", *MODEL)
    line = refused("train", *args, "--strict", "--out", tmp_path / "run")
    assert line.startswith(f"train image {name}: {reason}; repair it, or leave out --strict to skip it")


# Files that describe a stream


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_manifest(main, refused, hostile, tmp_path, share):
    path = tmp_path / "photos.yaml"
    options = ("--set", "tasks=2", "--set", "labels=task")  # so that the last block is not empty
    assert main("data", "build", hostile / "photos.csv", *options, "--out", path).returncode == 0
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert str(path) in refused("data", "inspect", path, "--out", tmp_path / "look")
    path.write_bytes(whole)
    assert main("data", "inspect", path, "--no-sheets", "--out", tmp_path / "look").returncode == 0


@pytest.fixture
def alarm():
    """A command that waits for a pipe fails."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("the command waits"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


TRAIN = ("train", *SMALL, "--out", "new")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        *((name, ("data", "inspect", name)) for name in ("x.yaml", "x.csv", "x.parquet", "x.zip")),
        ("split/task0/train.csv", ("data", "inspect", "split")),
        ("x.tar", ("data", "inspect", "PHOTOS", "--root", "x.tar")),
        ("order.txt", ("data", "inspect", "PHOTOS", "--set", "order=order.txt")),
        ("x.json", ("data", "convert", "x.json", "--out", "new.csv")),
        ("glove.txt", (*TRAIN, "--words", "glove.txt")),
        *((name, (*TRAIN, "--weights", name)) for name in ("x.pth", "x.safetensors")),
        ("x.yaml", (*TRAIN, "--config", "x.yaml")),
        ("x.csv", ("train", "--stream", "x.csv", "--out", "new")),
        ("x.yaml", ("compare", "--methods", "er", "--config", "x.yaml")),
        ("x.yaml", ("tune", "--method", "er", "--out", "new", "--config", "x.yaml")),
        ("x.py", ("list", "methods", "--plugin", "x.py")),
        ("x.npz", ("metrics", "x.npz")),
        ("x.csv", ("extend", "RUN", "x.csv", "--out", "new")),
        ("x.csv", ("evaluate", "RUN", "x.csv")),
        ("x.csv", ("calibrate", "RUN", "x.csv")),
        ("model/model.json", ("export", "model", "--out", "new")),
        ("model/model.safetensors", ("export", "model", "--out", "new")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_named_pipe_instead_of_a_file(refused, alarm, hostile, agcn_run, tmp_path, monkeypatch, name, command):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    if name.startswith("model"):
        shutil.copytree(agcn_run / "model", "model")
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    (path.parent / "test.csv").write_text("a.jpg,1\n")
    given = {"PHOTOS": hostile / "photos.csv", "RUN": agcn_run}
    assert path.name in refused(*(given.get(word, word) for word in command))
    assert not (tmp_path / "new").exists()


FILES = {
    "task0/train.csv": "plain 1.jpg,1,0\nplain 2.jpg,0,1\n../secret.jpg,1,0\n",
    "task0/test.csv": "test 1.jpg,1,1\n",
    "task1/train.csv": "plain 3.jpg,1\n",
    "task1/test.csv": "test 1.jpg,1,1,0\ntest 2.jpg,0,0,1\n/etc/passwd,0,0,1\n",
}


def packed(path, prefix="", method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, text in FILES.items():
            archive.writestr(prefix + name, text)
    return path


def test_a_zip_with_rows_that_lead_outside_the_folder(main, output, hostile, tmp_path):
    path = packed(tmp_path / "split.zip", "Split/")
    output("data", "inspect", path, "--root", hostile / "photos", "--decode", "--out", tmp_path / "look")
    found = json.loads((tmp_path / "look/stream.json").read_text())
    assert [found["splits"][part]["images"] for part in ("train", "test")] == [3, 2]
    problems = " ".join(found["problems"])
    assert 'task0/train.csv line 3: leads out of its folder ("..")' in problems
    assert "task1/test.csv line 3: an absolute path" in problems
    args = ("--stream", path, "--root", hostile / "photos", *MODEL)
    assert main("train", *args, "--strict", "--out", tmp_path / "run").returncode == 0


@pytest.mark.parametrize("prefix", ["../", "/", "../../up/", "/etc/", "a/../../"])
def test_a_zip_with_names_that_lead_outside(refused, tmp_path, prefix):
    (tmp_path / "in").mkdir()
    path = packed(tmp_path / "in" / "split.zip", prefix)
    line = refused("data", "inspect", path, "--out", tmp_path / "look")
    assert line.startswith(f"{path} holds no task0/train.csv: ")
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["in", "split.zip"]


def spoil_middle(data):
    at = data.index(b"task0/train.csv") + 30
    return data[:at] + bytes(byte ^ 0x55 for byte in data[at : at + 20]) + data[at + 20 :]


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-30], lambda data: data[: len(data) // 2], lambda data: b"", spoil_middle]
)
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_a_damaged_zip(refused, tmp_path, spoil, method):
    path = packed(tmp_path / "split.zip", method=method)
    path.write_bytes(spoil(path.read_bytes()))
    line = refused("data", "inspect", path, "--out", tmp_path / "look")
    assert line.startswith(str(path)) and "download" in line


# Output


def test_control_characters_in_a_file_do_not_reach_the_terminal(main, hostile, tmp_path):
    """A column name has an escape sequence."""
    text = (hostile / "photos.csv").read_text(encoding="utf-8").replace("split\n", "split,\x1b[31mred\n", 1)
    text = text.replace(",train\n", ",train,\n").replace(",test\n", ",test,\n")
    (tmp_path / "photos.csv").write_text(text, encoding="utf-8")
    args = ("--root", hostile / "photos", "--set", "tasks=1")
    looked = main("data", "inspect", tmp_path / "photos.csv", *args, "--no-sheets", "--out", tmp_path / "look")
    written = main("data", "build", tmp_path / "photos.csv", *args, "--out", tmp_path / "photos.yaml")
    for done in (looked, written):
        assert done.returncode == 0 and "not used" in done.stdout and "[31mred" in done.stdout
    stream = build(str(tmp_path / "photos.csv"), {"root": str(hostile / "photos"), "tasks": 1})
    for text in (looked.stdout, written.stdout, *stream.problems.lines()):
        assert "\x1b" not in text


def test_a_copy_of_the_photographs_in_another_folder_is_the_same_stream(hostile, tmp_path):
    root = tmp_path / "elsewhere"
    shutil.copytree(hostile / "photos", root, ignore=lambda folder, names: [n for n in names if n == "pipe.jpg"])
    streams = [build(str(hostile / "photos.csv"), {"root": str(r), "tasks": 2}) for r in (hostile / "photos", root)]
    assert streams[0].fingerprint == streams[1].fingerprint
    assert [int((~s.train.images.present).sum()) for s in streams] == [1, 2]
