"""`lifelabel calibrate`: probabilities and thresholds in a model, and their use by `lifelabel predict`."""

import json
import os
import shutil
import subprocess

import numpy as np
import pytest
import torch
from support import command_server, models

import lifelabel
from lifelabel.images.hashes import TrainedImages, hash_images
from lifelabel.images.photographs import FileImages
from lifelabel.images.source import Names
from lifelabel.metrics.functions import average_precision
from lifelabel.model.labelled_scores import score_labelled
from lifelabel.model.model_folder import write_model
from lifelabel.streams.labelled_set import from_table

IMAGES = 160


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """A model, and photographs whose labels follow its own scores: it is far too sure, and of each class in its way."""
    folder = tmp_path_factory.mktemp("calibrate")
    models.write(folder / "run" / "model")
    paths, _ = models.write_images(folder / "photos", IMAGES)
    model = lifelabel.load(folder / "run", "cpu")
    p = np.stack([scores for _, scores in model.score_files(paths)])
    logits = np.log(p / (1 - p))
    rng = np.random.default_rng(0)
    true = 1.5 * (logits - logits.mean(0)) / logits.std(0) + np.array([-2, -1, 0, 1, -1.5])
    labels = rng.random(true.shape) < 1 / (1 + np.exp(-true))
    labels[:, 4] = False  # a class without positives
    rows = [",".join([f"{k}.png", *map(str, row.astype(int))]) for k, row in enumerate(labels)]
    (folder / "photos.csv").write_text("\n".join([",".join(["image", *models.CLASSES]), *rows]) + "\n")
    return folder


@pytest.fixture
def place(template, tmp_path, monkeypatch):
    folder = shutil.copytree(template, tmp_path / "here")
    monkeypatch.chdir(folder)
    return folder


PHOTOS = ("photos.csv", "--root", "photos", "--device", "cpu")


def info(folder="run/model"):
    with open(f"{folder}/model.json") as file:
        return json.load(file)


def scores(place, folder="run"):
    """Raw logits and probabilities of the photographs, and their labels."""
    model = lifelabel.load(place / folder, "cpu")
    found = score_labelled(model, from_table(place / "photos.csv", place / "photos"))
    return found.logits, model.probabilities(torch.from_numpy(found.logits)).numpy(), found.labels


def test_probabilities_and_thresholds_are_stored_and_used(main, output, place):
    before = main("predict", "run", "photos/0.png", "--json")
    text = output("calibrate", "run", *PHOTOS)
    written = info()
    assert len(written["thresholds"]) == 5 and all(0 < t < 1 for t in written["thresholds"])
    calibration = written["calibration"]
    assert calibration["images"] == IMAGES and calibration["by"] == "f1" and calibration["probabilities"] == "platt"
    assert all(slope > 0 for slope in calibration["slope"]) and calibration["images_of"]["name"] == "photos.csv"
    figures = calibration["cross_validation"]
    assert list(figures) == ["before", "after"]
    assert figures["after"]["ECE"] < figures["before"]["ECE"] / 3
    assert figures["after"]["log_loss"] < figures["before"]["log_loss"]
    assert figures["after"]["CF1"] > figures["before"]["CF1"]
    assert "160 images" in text and "uncalibrated, at 0.5" in text and "written to run" in text
    assert "whose calibration depends on the other classes" in text
    assert "calibrated" in (place / "run/model/README.md").read_text()

    logits, probabilities, labels = scores(place)
    given = np.array(calibration["slope"]) * logits + np.array(calibration["shift"])
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-given)), rtol=1e-4)
    torch.testing.assert_close(
        average_precision(probabilities, labels), average_precision(logits, labels), equal_nan=True
    )
    after = main("predict", "run", "photos/0.png", "--json")
    assert after.stdout != before.stdout and after.returncode == 0
    shown = json.loads(after.stdout)["labels"]
    expected = {models.CLASSES[k] for k in np.flatnonzero(probabilities[0] >= np.array(written["thresholds"]))}
    assert set(shown if isinstance(shown, dict) else [each["label"] for each in shown]) == expected


def test_calibrating_again_starts_from_the_raw_logits(main, place):
    main("calibrate", "run", *PHOTOS)
    first = info()
    done = main("calibrate", "run", *PHOTOS)
    second = info()
    assert "the model as it is" in done.stdout
    assert second["thresholds"] == first["thresholds"]
    for key in ("slope", "shift", "images_of"):
        assert second["calibration"][key] == first["calibration"][key]
    assert list(second["calibration"]["cross_validation"]) == ["before", "now", "after"]


def test_dry_run_changes_nothing(output, place):
    files = {path.name: path.read_bytes() for path in (place / "run/model").iterdir()}
    text = output("calibrate", "run", *PHOTOS, "--dry-run")
    assert "nothing was changed (--dry-run)" in text
    found = lifelabel.calibrate("run", "photos.csv", root="photos", device="cpu", dry_run=True)
    assert found.folder is None and f"{found.figures['after']['ECE']:.4f}" in text
    assert found.model.thresholds.tolist() == found.thresholds.tolist()
    assert {path.name: path.read_bytes() for path in (place / "run/model").iterdir()} == files


def test_a_copy(main, place):
    before = info()
    assert main("calibrate", "run/model", *PHOTOS, "--out", "models/sure", "--precision", "0.7").returncode == 0
    assert info() == before
    copy = info("models/sure")
    assert copy["calibration"]["by"] == "precision 0.7" and copy["classes"] == before["classes"]
    _, probabilities, labels = scores(place, "models/sure")
    predicted = probabilities >= np.array(copy["thresholds"])
    for k in range(5):
        if predicted[:, k].any():
            assert labels[predicted[:, k], k].mean() >= 0.7


def test_classes_that_cannot_reach_the_precision_are_named(main, place):
    done = main("calibrate", "run", *PHOTOS, "--by", "precision", "--precision", "0.99", "--dry-run")
    assert f"5 classes that cannot reach precision 0.99 here, with a high threshold: {models.CLASSES[0]}" in done.stdout


def test_costs(main, place):
    """For calibrated probabilities, the threshold is FP / (FP + FN)."""
    assert main("calibrate", "run", *PHOTOS, "--cost", "0.5:2").returncode == 0
    assert info()["thresholds"] == [0.2] * 5 and info()["calibration"]["by"] == "cost 0.5:2"
    assert main("calibrate", "run", *PHOTOS, "--cost", "1:4", "--probabilities", "none").returncode == 0
    assert info()["calibration"]["slope"] == [1] * 5 and len(set(info()["thresholds"])) > 1


def test_only_probabilities(main, place):
    assert main("calibrate", "run", *PHOTOS, "--by", "none").returncode == 0
    assert info()["thresholds"] is None and info()["calibration"]["slope"] != [1] * 5


def test_the_evaluation_of_a_calibrated_model(main, output, place):
    main("calibrate", "run", *PHOTOS)
    text = output("evaluate", "run", *PHOTOS, "--out", "e")
    assert "at the thresholds of the model" in text
    assert "note: the model was calibrated on these images" in text
    found = json.loads((place / "e/evaluation.json").read_text())
    assert found["model"]["calibrated_by"] == "f1" and list(found["headline"]) == ["0.5", "model"]
    assert [row["threshold"] for row in found["per_class"]] == pytest.approx(info()["thresholds"])
    lines = (place / "photos.csv").read_text().splitlines()
    (place / "photos.csv").write_text("\n".join(lines[:90]) + "\n")
    assert "calibrated on these images" not in main("evaluate", "run", *PHOTOS, "--out", "e").stdout


def test_a_set_with_some_of_the_classes(output, place):
    """The other classes have the common slope, shift and threshold."""
    lines = [line.split(",") for line in (place / "photos.csv").read_text().splitlines()]
    (place / "photos.csv").write_text("\n".join(",".join(line[:4]) for line in lines) + "\n")
    assert "2 classes that only the model has" in output("calibrate", "run", *PHOTOS)
    slope, shift, limits = info()["calibration"]["slope"], info()["calibration"]["shift"], info()["thresholds"]
    assert slope[3] == pytest.approx(slope[4]) and shift[3] == pytest.approx(shift[4]) and limits[3] == limits[4]
    assert 0.8 * min(slope[:3]) < slope[3] < 1.2 * max(slope[:3])


def test_val_rows_are_used_if_there_are_some(main, place):
    lines = (place / "photos.csv").read_text().splitlines()
    for count, used in ((30, "30 images (val rows of photos.csv)"), (0, "160 images (test rows of photos.csv)")):
        splits = ["split", *["dev"] * count, *["test"] * (IMAGES - count)]
        rows = [f"{split},{line}" for split, line in zip(splits, lines, strict=True)]
        (place / "photos.csv").write_text("\n".join([*rows, "train,x.png,0,0,0,0,0"]) + "\n")
        assert used in main("calibrate", "run", *PHOTOS, "--dry-run").stdout


def test_training_images_are_left_out(main, place):
    """The copy that `--out` writes knows them too."""
    trained = TrainedImages(np.zeros((0, 2), np.uint64), 32)
    trained.add(["other.png"], hash_images(FileImages(place / "photos", Names(["0.png"])), np.arange(1), 32)[0])
    model = lifelabel.load("run", "cpu")
    write_model(place / "run/model", model.network, model.info, trained)
    for source, images in (("run", 159), ("copy", 159)):
        done = main("calibrate", source, *PHOTOS, "--out", "copy" if source == "run" else "again")
        assert f"{images} images (all rows without training images" in done.stdout
        assert "1 training image of the model left out (0.png)" in done.stdout
    done = main("calibrate", "run", *PHOTOS, "--dry-run", "--include-trained")
    assert "the model is too sure of its training images" in done.stdout and "160 images (all rows" in done.stdout


def test_a_stream(main, place):
    words = ("--set", "stream.train_images=10", "--set", "stream.test_images=40", "--device", "cpu")
    done = main("calibrate", "run", "--stream", "scenes", *words)
    assert done.returncode == 0 and info()["calibration"]["images_of"]["rows"] == "test images"
    assert "40 images are few" in done.stdout and "15 classes that only the set has" in done.stdout


MISTAKES = {
    "--by best": "unknown rule 'best': (known: cost, f1, none, precision)",
    "--by f1 --precision 0.8": "--precision has no meaning with --by f1: leave one of them out",
    "--precision 0.8 --cost 1:2": "--cost has no meaning with --by precision: leave one of them out",
    "--precision 1": "--precision must be between 0 and 1, not 1",
    "--by cost": "--by cost needs the costs: give --cost FP:FN, such as 1:5",
    "--cost 1": "--cost takes FP:FN, such as 1:5, not '1'",
    "--cost 0:1": "--cost 0:1: both costs must be above 0",
    "--cost nan:1": "--cost nan:1: both costs must be above 0",
    "--probabilities isotonic": "unknown probabilities 'isotonic': (known: none, platt)",
    "--probabilities none --by none": "there is nothing to fit",
    "--out photos": "photos is not an empty folder: choose another --out",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(refused, place, words):
    before = info()
    assert MISTAKES[words] in refused("calibrate", "run", *PHOTOS, *words.split())
    assert info() == before


def test_images_without_a_label_of_the_model(refused, place):
    header = ",".join(["image", models.CLASSES[0], "gnu"])
    (place / "photos.csv").write_text(f"{header}\n0.png,0,1\n1.png,0,1\n")
    assert "no image of photos.csv has a label of the model: there is nothing to fit" in refused(
        "calibrate", "run", *PHOTOS
    )
    (place / "photos.csv").write_text(f"{header}\n0.png,1,1\n")
    assert "there is 1 image: give at least 2" in refused("calibrate", "run", *PHOTOS)


def test_a_reader_that_ends_early_leaves_a_calibrated_model(place):
    """As `lifelabel calibrate … | head -1`: the model is saved before the first line, and nothing is an error."""
    words = ["calibrate", "run", *PHOTOS]
    read, write = os.pipe()
    os.close(read)  # no reader at all
    done = command_server.run(*words, stdout=write, stderr=subprocess.PIPE, text=True, timeout=300)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "") and info()["thresholds"] is not None
