"""`lifelabel metrics`: one set of scores under every convention. tests/metrics has the figures by hand."""

import io
import json
import os
import re
import zipfile

import numpy as np
import pytest

from lifelabel.metrics.conventions import FAMILIES, compare, read_scores

NAMES = ("mAP", "CF1", "OF1")


def scores(images=60, classes=7):
    """Logits that correlate with the labels, and labels with an empty class and some images without a label."""
    rng = np.random.default_rng(0)
    labels = rng.random((images, classes)) < 0.3
    labels[:, 3] = False
    labels[:9] = False
    logits = rng.normal(size=(images, classes)) * 2 + 2 * labels - 0.5
    return logits, labels


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def rows(text):
    """The rows of the tables in the output: who reports in this way, and the three metrics."""
    found = []
    for line in text.splitlines():
        for family in FAMILIES:
            if line.strip().startswith(family.who):
                found.append((family.who, [float(word) for word in line.split()[-3:]]))
    return found


def test_every_convention_in_one_table(output, tmp_path):
    logits, labels = scores()
    has_label = labels.any(1)
    path, out = save(tmp_path / "s.npz", logits=logits, labels=labels), tmp_path / "figures.json"
    text = output("metrics", path, "--json", out)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found == compare(read_scores(path))
    labelled = compare(read_scores(save(tmp_path / "l.npz", logits=logits[has_label], labels=labels[has_label])))
    for one, other in zip(found["families"], labelled["families"], strict=True):
        assert one["labelled"] == other["all"]
    figures = [(family["who"], family[part]) for part in ("all", "labelled") for family in found["families"]]
    assert rows(text) == [(who, [float(f"{100 * of[name]:.2f}") for name in NAMES]) for who, of in figures]
    every = 100 * np.array([[of[name] for name in NAMES] for _, of in figures])
    last = ", ".join(
        f"{name} {low:.2f} to {high:.2f}" for name, low, high in zip(NAMES, every.min(0), every.max(0), strict=True)
    )
    assert text.endswith(f"The same scores, by convention and by the images used: {last}\n")
    assert np.ptp(every, 0)[1] > 10  # these scores differ between conventions
    assert "all 60 images" in text and f"the {has_label.sum()} images with at least one label" in text


@pytest.mark.parametrize(
    ("name", "make", "kind"),
    [
        ("probabilities", lambda z: 1 / (1 + np.exp(-z)), "probabilities"),
        ("scores", lambda z: 1 / (1 + np.exp(-z)), "probabilities"),
        ("scores", lambda z: z, "logits"),
        ("logits", lambda z: z.astype(">f8"), "logits"),  # another machine's byte order
        ("logits", lambda z: np.asfortranarray(z.astype(np.longdouble)), "logits"),
    ],
)
def test_logits_probabilities_and_scores_give_the_same_metrics(main, tmp_path, name, make, kind):
    logits, labels = scores()
    out = tmp_path / "figures.json"
    path = save(tmp_path / "s.npz", **{name: make(logits), "labels": labels.astype(np.int64)})
    assert main("metrics", path, "--json", out).returncode == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["scores"] == kind
    expected = compare(read_scores(save(path, logits=logits, labels=labels)))
    for one, other in zip(found["families"], expected["families"], strict=True):
        assert one["all"] == pytest.approx(other["all"], abs=1e-9)


def test_one_table_if_every_image_has_a_label(main, tmp_path):
    logits, labels = scores()
    labels[:, 0] = True
    done = main("metrics", save(tmp_path / "s.npz", logits=logits, labels=labels))
    assert len(rows(done.stdout)) == 5 and "changes nothing" in done.stdout


def test_without_any_label_there_is_no_nan(output, tmp_path):
    out = tmp_path / "figures.json"
    path = save(tmp_path / "s.npz", logits=np.ones((3, 2)), labels=np.zeros((3, 2)))
    assert "nan" not in output("metrics", path, "--json", out).lower() + out.read_text().lower()


def test_the_scores_of_a_run(main, small, tmp_path):
    """The scores of `train --save-scores` give the metrics of the run again."""
    folder = tmp_path / "run"
    assert main("train", "--method", "fine-tuning", *small, "--save-scores", "--out", folder, "-q").returncode == 0
    final = json.loads((folder / "metrics.json").read_text())["final"]
    for given in (folder / "scores.npz", folder):
        assert main("metrics", given, "--json", tmp_path / "f.json").returncode == 0
        found = json.loads((tmp_path / "f.json").read_text())
        assert found["conventions"]["all"] == pytest.approx(final["conventions"], abs=1e-12)
        assert found["families"][0]["all"] == pytest.approx({k: final[k] for k in ("mAP", "CF1", "OF1")}, abs=1e-12)
    with np.load(folder / "scores.npz", allow_pickle=False) as arrays:
        assert sorted(arrays) == ["classes", "labels", "logits", "task_of_class", "task_of_image"]


# Wrong files


def of(**arrays):
    return lambda path: save(path, **arrays)


def cut(path):
    save(path, logits=np.random.default_rng(0).random((50, 50)), labels=np.zeros((50, 50)))
    path.write_bytes(path.read_bytes()[:9000])


def flipped(path):
    save(path, logits=np.zeros((50, 50)), labels=np.zeros((50, 50)))
    data = bytearray(path.read_bytes())
    data[5000] ^= 255
    path.write_bytes(bytes(data))


def announcing(shape, dtype="<f8"):
    """A member with a header and no data."""

    def write(path):
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"shape": shape, "fortran_order": False, "descr": dtype})
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("logits.npy", header.getvalue())
            archive.writestr("labels.npy", header.getvalue())

    return write


def pickled(path):
    np.savez(path, logits=np.array([{"a": 1}, None], dtype=object), labels=np.zeros(2))


L, Y = np.zeros((4, 3)), np.zeros((4, 3), int)
WRONG = {
    "no labels": (of(logits=L), "must hold `labels` and one of `logits`, .*; it holds logits"),
    "no scores": (of(labels=Y, a=L), r"must hold .*; it holds a, labels"),
    "both": (of(labels=Y, logits=L, probabilities=L), "one of"),
    "shapes": (of(logits=L, labels=Y[:3]), "logits is 4 × 3 and labels 3 × 3: both must be images × classes"),
    "one dimension": (of(logits=L[0], labels=Y[0]), "both must be images × classes"),
    "nothing": (of(logits=L[:0], labels=Y[:0]), "there is nothing to score"),
    "nan": (of(logits=np.where(Y == Y, np.nan, 0), labels=Y), "logits holds 12 NaN, the first for image 0, class 0"),
    "labels of 2": (of(logits=L, labels=Y + 2), "labels must be 0 or 1; image 0, class 0 has 2"),
    "labels of nan": (of(logits=L, labels=Y + np.nan), "labels must be 0 or 1; image 0, class 0 has nan"),
    "no probabilities": (of(probabilities=L + 3, labels=Y), "probabilities run from 3 to 3"),
    "text": (of(logits=L.astype(str), labels=Y), "logits must be numbers, not <U32"),
    "complex": (of(logits=L.astype(complex), labels=Y), "logits must be numbers, not complex128"),
    "pickled": (pickled, "logits must be numbers, not object"),
    "cut off": (cut, "damaged or cut short"),
    "damaged": (flipped, "damaged or cut short"),
    "no zip": (lambda path: path.write_text("logits"), "damaged or cut short"),
    "empty": (lambda path: path.touch(), "damaged or cut short"),
    "huge header": (announcing((10**12, 2)), "damaged or cut short"),
    "negative": (announcing((-4, -3)), "damaged or cut short"),
    "a pipe": (os.mkfifo, "is not a regular file"),
    "short of data": (announcing((100, 100)), "damaged"),
    "a folder": (lambda path: path.mkdir(), "holds no scores.npz: train with --save-scores"),
    "not there": (lambda path: None, "cannot read .*: No such file"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_refused_in_one_line(refused, tmp_path, what):
    make, pattern = WRONG[what]
    make(tmp_path / "s.npz")
    line = refused("metrics", tmp_path / "s.npz", "--json", tmp_path / "out.json")
    assert re.search(pattern, line), line
    assert str(tmp_path / "s.npz") in line and not (tmp_path / "out.json").exists()


def test_the_number_of_scores_is_limited(refused, main, tmp_path, monkeypatch):
    path = save(tmp_path / "s.npz", logits=L, labels=Y)
    monkeypatch.setattr("lifelabel.metrics.conventions._MAX_SCORES", 11)
    assert refused("metrics", path) == f"{path}: logits is 4 × 3, more than 11 numbers"
    monkeypatch.setattr("lifelabel.metrics.conventions._MAX_SCORES", 12)
    assert main("metrics", path).returncode == 0


def test_blocks_of_scores_give_the_same_metrics(main, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    path = save(tmp_path / "s.npz", logits=rng.normal(size=(40, 7)), labels=rng.random((40, 7)) < 0.1, other=[None])
    whole = main("metrics", path).stdout
    monkeypatch.setattr("lifelabel.metrics.conventions._BLOCK", 20)
    monkeypatch.setattr("lifelabel.metrics.functions._CHUNK", 20)
    assert main("metrics", path).stdout == whole and "40 images, 7 classes" in whole
    values = rng.normal(size=(40, 7))
    values[30, 2] = values[39, 1] = np.nan
    path = save(tmp_path / "s.npz", logits=values, labels=np.zeros((40, 7)))
    assert "holds 2 NaN, the first for image 30, class 2" in main("metrics", path).stderr


def test_an_output_file_that_cannot_be_written(refused, tmp_path):
    path = save(tmp_path / "s.npz", logits=L, labels=Y)
    assert "cannot write" in refused("metrics", path, "--json", tmp_path / "nowhere" / "out.json")
