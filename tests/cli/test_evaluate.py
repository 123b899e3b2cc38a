"""`lifelabel evaluate`: a finished model on a table and on a stream, and mistakes of the user."""

import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image
from support import models

import lifelabel
from lifelabel.images.hashes import hash_names

A, B = models.CLASSES[0], models.CLASSES[3]


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """A folder with the model of a run and labelled photographs."""
    folder = tmp_path_factory.mktemp("evaluate")
    models.write(folder / "run" / "model")
    models.write_images(folder / "photos", 60)
    lines = [f"{k}.png,{';'.join([A] * (k % 3 == 0) + [B] * (k % 4 == 0) + ['unicorn'] * (k == 7))}" for k in range(60)]
    (folder / "photos.csv").write_text("\n".join(["image,labels", *lines]) + "\n")
    (folder / "run" / "config.yaml").write_text("stream: scenes\n")
    return folder


@pytest.fixture
def place(template, tmp_path, monkeypatch):
    """A copy of it, which is the current folder."""
    folder = shutil.copytree(template, tmp_path / "here")
    monkeypatch.chdir(folder)
    return folder


def result(folder):
    return json.loads((folder / "evaluation.json").read_text())


def test_a_table(main, output, place):
    with open("photos.csv", "a") as file:
        file.write(f"missing.png,{A}\n61.png,{A};?{B}\n")
    (place / "photos" / "61.png").write_text("no image")
    text = output("evaluate", "run", "photos.csv", "--root", "photos", "--device", "cpu", "--save-scores", "out/s.npz")
    found = result(place / "run" / "evaluation")
    model = lifelabel.load("run", "cpu")
    logits = np.stack([np.log(p / (1 - p)) for _, p in model.score_files([f"photos/{k}.png" for k in range(60)])])
    with np.load("out/s.npz") as arrays:
        assert arrays["classes"].tolist() == [A, B] and arrays["images"][5] == "5.png"
        np.testing.assert_allclose(arrays["logits"], logits[:, [0, 3]], atol=1e-3)
        assert np.array_equal(arrays["labels"], [[k % 3 == 0, k % 4 == 0] for k in range(60)])
    assert found["set"]["images"] == 60 and found["set"]["skipped"] == 2 and found["set"]["rows"] == "all rows"
    assert [(row["name"], row["task"], row["positives"]) for row in found["per_class"]] == [(A, 1, 20), (B, 2, 15)]
    assert found["classes"]["ignored"] == ["unicorn"] and len(found["classes"]["not_evaluated"]) == 3
    assert len(found["model"]["tensors_sha256"]) == 64 and found["environment"]["date"] and found["model"]["label"]
    skipped = [json.loads(line) for line in (place / "run/evaluation/skipped.jsonl").read_text().splitlines()]
    assert [each["image"] for each in skipped] == ["missing.png", "61.png"]
    assert skipped[0]["reason"] == "no such file"
    written = sorted(path.name for path in (place / "run" / "evaluation").iterdir())
    assert written == ["evaluation.json", "mistakes.png", "per_class.png", "report.md", "skipped.jsonl"]
    assert f"written to {os.path.join('run', 'evaluation')}: evaluation.json, report.md, per_class.png" in text
    again = json.loads(json.dumps(lifelabel.evaluate("run", "photos.csv", root="photos", device="cpu")))
    assert {**again, "environment": None} == {**found, "environment": None}
    for part in (
        "at 0.5",
        "calibration error (ECE)",
        "torchmetrics ≥ 1.4",
        "best classes by AP",
        "unicorn",
        "2 images",
    ):
        assert part in text, part
    assert main("metrics", "out/s.npz", "--json", "m.json").returncode == 0
    assert json.loads((place / "m.json").read_text()) == found["metrics"]


def test_a_second_evaluation_replaces_the_first(output, place):
    """Files of the first one do not stay behind."""
    folder = place / "run" / "evaluation"
    folder.mkdir()
    for name in ("skipped.jsonl", "mistakes.png", "mine.txt"):
        (folder / name).write_text("old")
    (place / "one.csv").write_text(f"image,labels\n0.png,{A}\n../x.png,{A}\n")
    text = output("evaluate", "run", "one.csv", "--root", "photos", "--device", "cpu", "--threshold", "0.000001")
    assert "note: 1 row with an image path that is not allowed: line 3: '../x.png'" in text
    written = {path.name: path for path in folder.iterdir()}
    assert written.keys() == {"evaluation.json", "per_class.png", "report.md", "mine.txt"}


@pytest.fixture(scope="session")
def own_run(tmp_path_factory):
    """A run on a table with a column `task`, without a column `split`: its folder has photographs and table too."""
    folder, rng = tmp_path_factory.mktemp("own"), np.random.default_rng(0)
    models.write_images(folder / "photos", 60)
    rows = []
    for k in range(60):
        labels = "abcd"[: 2 + 2 * (k % 2)]
        shown = [name for name in labels if rng.random() < 0.5] or [labels[k % len(labels)]]
        rows.append(f"{k}.png|{'+'.join(shown)}|{1 + k % 2}")
    (folder / "t.csv").write_text("\n".join(["image,labels,task", *rows]).replace("|", ",") + "\n")
    table = {"test_share": 0.4, "seed": 4, "separator": "+"}
    small = {"backbone": "tiny", "weights": "none", "image_size": 32, "augment": "crop-flip", "device": "cpu"}
    given = {"stream": str(folder / "t.csv"), "root": str(folder / "photos"), "stream_options": table, **small}
    lifelabel.train(folder / "run", method="fine-tuning", **given)
    return folder


def test_the_table_of_a_run_has_the_figures_of_the_run(main, output, own_run, tmp_path, monkeypatch):
    """Its training images are left out, and labels of later tasks are unknown, as in metrics.json."""
    monkeypatch.chdir(tmp_path)
    final = json.loads((own_run / "run/metrics.json").read_text())["final"]
    (tmp_path / "same").symlink_to(own_run / "photos")
    (tmp_path / "more.csv").write_text((own_run / "t.csv").read_text().replace("\n0.png", "\nno.png,a,1\n0.png"))
    shutil.copytree(own_run / "run" / "model", "copied")
    other = "--root", "same", "--set", "stream.separator=+"
    for words in ((own_run / "run", own_run / "t.csv"), ("copied", "more.csv", *other)):
        assert "of the model left out (" in output("evaluate", *words, "--device", "cpu", "--out", "e")
        found = result(tmp_path / "e")
        assert found["set"]["unknown_labels"] and 10 < found["set"]["images"] < 40
        for name in ("mAP", "CF1", "OF1"):
            assert found["headline"]["0.5"][name] == pytest.approx(final[name], abs=1e-6)
    done = main("calibrate", own_run / "run", own_run / "t.csv", "--device", "cpu", "--dry-run")
    assert f"{found['set']['images']} images (all rows without training images of t.csv)" in done.stdout


def test_training_images_under_other_names(main, refused, own_run, tmp_path, monkeypatch):
    """They are recognised by their pixels. A resized one is not, but there is a note."""
    monkeypatch.chdir(tmp_path)
    pairs = np.fromfile(own_run / "run/model/training-images.bin", "<u8").reshape(-1, 2)
    trained = [f"{k}.png" for k in range(60) if hash_names([f"{k}.png"])[0] in pairs[pairs[:, 1] > 0, 0]]
    assert 20 < len(trained) < 50
    for place, name in enumerate(trained[:2]):
        shutil.copy(own_run / "photos" / name, f"copy{place}.png")
    Image.open(own_run / "photos" / trained[2]).resize((40, 40)).save(trained[2])
    (tmp_path / "t.csv").write_text("image,labels\ncopy0.png,a;b\ncopy1.png,c;d\n")
    words = ("evaluate", own_run / "run", "t.csv", "--device", "cpu", "--out", "e")
    assert refused(*words).startswith("all 2 images (all rows of t.csv) are training images of the model: give others")
    assert main(*words, "--include-trained").returncode == 0 and result(tmp_path / "e")["set"]["images"] == 2
    assert result(tmp_path / "e")["notes"][0].startswith("2 of these images are training images (copy0.png, copy1.png)")
    (tmp_path / "t.csv").write_text(f"image,labels\ncopy0.png,a;b\n{trained[2]},a;b\n")
    assert main(*words).returncode == 0 and result(tmp_path / "e")["set"]["images"] == 1
    notes = result(tmp_path / "e")["notes"]
    assert notes[0] == "1 training image of the model left out (copy0.png); --include-trained uses them"
    assert notes[1].startswith("1 image has the name of a training image, but other pixels")


def test_a_model_folder_by_itself(output, place):
    """The results are in the current folder. This model does not say on which images it was trained."""
    shutil.copytree("run/model", "models/mine")
    output("evaluate", "models/mine", "photos.csv", "--root", "photos", "--device", "cpu", "--threshold", "0.3")
    found = result(place / "evaluation-mine")
    assert list(found["headline"]) == ["0.5", "0.3"] and found["set"]["images"] == 60
    assert found["notes"][0].startswith("the model does not say on which images it was trained")
    assert sorted(path.name for path in (place / "models/mine").iterdir()) == [
        "README.md", "model.json", "model.safetensors",
    ]  # fmt: skip


def test_the_stream_of_a_run(main, output, small, tmp_path, monkeypatch):
    """The figures are those of the run."""
    monkeypatch.chdir(tmp_path)
    assert main("train", "--method", "fine-tuning", *small, "--out", "run", "-q").returncode == 0
    options = [word for word in small if word.startswith("stream.")]
    words = [word for option in options for word in ("--set", option)]
    output("evaluate", "run", "--stream", "scenes", *words, "--device", "cpu")
    found, run = result(tmp_path / "run/evaluation"), json.loads((tmp_path / "run/metrics.json").read_text())["final"]
    for name in ("mAP", "CF1", "OF1"):
        assert found["headline"]["0.5"][name] == pytest.approx(run[name], abs=2e-3)
    assert found["metrics"]["conventions"]["all"] == pytest.approx(run["conventions"], abs=2e-3)
    done = main("evaluate", "run", "--stream", "scenes", *words, "--device", "cpu", "--rows", "train")
    assert "all 60 images (training images of scenes) are training images of the model" in done.stderr


MISTAKES = {
    "run": "give the labelled images: a TABLE, or --stream NAME (one of them)",
    "run photos.csv --stream scenes": "give the labelled images: a TABLE, or --stream NAME (one of them)",
    "run --stream sceens": "unknown stream 'sceens': did you mean 'scenes'?",
    "run no.csv": "there is no table no.csv",
    "run photos.csv": "none of the images of photos.csv can be read (0.png: no such file): check --root",
    "run photos.csv --root no": "there is no folder no: give another --root DIR",
    "run photos.csv --rows some": "unknown rows 'some': (known: all, test, train, val)",
    "run photos.csv --set stream.tasks=3": "stream.tasks cannot be set for a table here: the options are stream.root, "
    "stream.separator, stream.alias, stream.merge_case",
    "run photos.csv --set method.a=1": "--set method.…: this command has no method",
    "run photos.csv --set sepparator=1": "unknown option of the table 'sepparator': did you mean",
    "run photos.csv --threshold 0": "--threshold must be above 0 and at most 1, not 0",
    "run photos.csv --threshold x": "Invalid value for '--threshold'",
    "run photos.csv --save-scores a.txt": "--save-scores a.txt: the name must end in .npz",
    "run photos.csv --save-scores run/model/s.npz": "run/model/s.npz is in the model folder: choose another "
    "--save-scores",
    "run photos.csv --save-scores photos.csv/s.npz": "cannot write photos.csv/s.npz: choose another --save-scores",
    "run photos.csv --out run/model/e": "run/model/e is in the model folder: choose another --out",
    "run photos.csv --out photos.csv": "cannot write to photos.csv: choose another --out",
    "run photos.csv --device tpu": "unknown device 'tpu'",
    "run photos.csv --workers -1": "--workers must be at least 0, not -1",
    "run photos.csv --batch-size 0": "batch_size must be 1 to",
    "photos photos.csv": "photos has no model",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(refused, place, words):
    assert MISTAKES[words] in refused("evaluate", *words.split())
    assert not (place / "run" / "evaluation").exists()


def test_an_image_that_disappears_is_not_on_the_sheet(main, place, monkeypatch):
    """Between scoring and drawing."""
    from lifelabel.model.model import Model

    score = Model.score_source

    def then_delete(*args, **more):
        found = score(*args, **more)
        shutil.rmtree("photos")
        return found

    monkeypatch.setattr(Model, "score_source", then_delete)
    assert main("evaluate", "run", "photos.csv", "--root", "photos", "--device", "cpu").returncode == 0
    assert not (place / "run/evaluation/mistakes.png").exists()
