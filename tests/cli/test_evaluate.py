"""`lifelabel evaluate`: a finished model on a table and on a stream, and mistakes of the user."""

import json
import os
import shutil

import numpy as np
import pytest
import yaml
from PIL import Image
from support import models

import lifelabel
from lifelabel.nn.weights import sha256
from lifelabel.streams import table

A, B = models.CLASSES[0], models.CLASSES[3]


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """A folder with the model of a run and labelled photographs."""
    folder = tmp_path_factory.mktemp("evaluate")
    models.write(folder / "run" / "model")
    models.write_images(folder / "photos", 60)
    lines = [f"{k}.png,{';'.join([A] * (k % 3 == 0) + [B] * (k % 4 == 0) + ['unicorn'] * (k == 7))}" for k in range(60)]
    (folder / "photos.csv").write_text("\n".join(["image,labels", *lines]) + "\n")
    config = {"stream": "table", "stream_options": {"file": str(folder / "trained.csv"), "test_share": 0.5, "seed": 3}}
    (folder / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.fixture
def place(template, tmp_path, monkeypatch):
    """A copy of it, which is the current folder."""
    folder = shutil.copytree(template, tmp_path / "here")
    config = (folder / "run" / "config.yaml").read_text()
    (folder / "run" / "config.yaml").write_text(config.replace(str(template), str(folder)))
    monkeypatch.chdir(folder)
    return folder


def result(folder):
    return json.loads((folder / "evaluation.json").read_text())


def test_a_table(main, place):
    with open("photos.csv", "a") as file:
        file.write(f"missing.png,{A}\n61.png,{A};?{B}\n")
    (place / "photos" / "61.png").write_text("no image")
    done = main("evaluate", "run", "photos.csv", "--root", "photos", "--device", "cpu", "--save-scores", "out/s.npz")
    assert (done.returncode, done.stderr) == (0, "")
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
    assert f"written to {os.path.join('run', 'evaluation')}: evaluation.json, report.md, per_class.png" in done.stdout
    for part in (
        "at 0.5",
        "calibration error (ECE)",
        "torchmetrics ≥ 1.4",
        "best classes by AP",
        "unicorn",
        "2 images",
    ):
        assert part in done.stdout, part
    assert main("metrics", "out/s.npz", "--json", "m.json").returncode == 0
    assert json.loads((place / "m.json").read_text()) == found["metrics"]


def test_a_second_evaluation_replaces_the_first(main, place):
    """Files of the first one do not stay behind."""
    folder = place / "run" / "evaluation"
    folder.mkdir()
    for name in ("skipped.jsonl", "mistakes.png", "mine.txt"):
        (folder / name).write_text("old")
    (place / "one.csv").write_text(f"image,labels\n0.png,{A}\n../x.png,{A}\n")
    done = main("evaluate", "run", "one.csv", "--root", "photos", "--device", "cpu", "--threshold", "0.000001")
    assert done.returncode == 0
    assert "note: 1 rows with an image path that is not allowed: line 3: '../x.png'" in done.stdout
    written = {path.name: path for path in folder.iterdir()}
    assert written.keys() == {"evaluation.json", "per_class.png", "report.md", "mine.txt"}


def test_the_table_of_the_run(main, place):
    """Only the rows that the run held out, unless others are requested."""
    shutil.copy("photos.csv", "trained.csv")
    run = table.read(place / "trained.csv", place / "photos", test_share=0.5, seed=3)
    done = main("evaluate", "run", "trained.csv", "--root", "photos", "--device", "cpu")
    found = result(place / "run" / "evaluation")
    assert found["set"]["images"] == len(run.test.names) < 60 and found["set"]["rows"] == "test rows"
    assert "note: the run was trained on trained.csv: only its held-out rows are used" in done.stdout
    assert "test_share 0.5 and seed 3" in found["notes"][0]
    for rows, images in (("train", len(run.train.names)), ("all", 60)):
        done = main("evaluate", "run", "trained.csv", "--root", "photos", "--device", "cpu", "--rows", rows)
        found = result(place / "run" / "evaluation")
        assert found["set"]["images"] == images and "the figures are too high" in found["notes"][0]
    assert main("evaluate", "run/model", "trained.csv", "--root", "photos", "--device", "cpu").returncode == 0
    assert result(place / "evaluation-run")["set"]["images"] == len(run.test.names)


@pytest.mark.parametrize("setting", ["seed=5", "test_share=0.9"])
def test_other_held_out_rows_of_the_table_of_the_run_are_refused(refused, place, setting):
    shutil.copy("photos.csv", "trained.csv")
    line = refused("evaluate", "run", "trained.csv", "--root", "photos", "--set", f"stream.{setting}")
    name = setting.partition("=")[0]
    assert line.startswith(f"the run was trained on trained.csv with {name} ") and line.endswith(f"stream.{name}")
    assert not (place / "run" / "evaluation").exists()


def test_the_table_of_an_extended_run(main, place):
    """It is recognised by its content. Values of other types are ignored."""
    about = json.loads((place / "run/model/model.json").read_text())
    entry = {"file": "first.csv", "sha256": sha256(place / "photos.csv")}
    entry |= {"test_share": 0.5, "seed": 3, "separator": ";"}
    for tables, images in (
        ([3, {**entry, "seed": "x"}, {**entry, "sha256": None}, entry], None), ({"a": 1}, 60), ([{"file": []}], 60),
    ):  # fmt: skip
        about["training"] = {**about["training"], "extends": {"tables": tables}}
        (place / "run/model/model.json").write_text(json.dumps(about))
        done = main("evaluate", "run", "photos.csv", "--root", "photos", "--device", "cpu")
        held_out = len(table.read(place / "photos.csv", place / "photos", test_share=0.5, seed=3).test.names)
        assert result(place / "run" / "evaluation")["set"]["images"] == (images or held_out) and held_out < 60
        assert ("the run was trained on photos.csv: only its held-out rows" in done.stdout) == (images is None)
    about["training"]["extends"] = {"tables": [{**entry, "file": "photos.csv", "sha256": None}]}
    (place / "run/model/model.json").write_text(json.dumps(about))
    main("evaluate", "run", "photos.csv", "--root", "photos", "--device", "cpu")
    assert result(place / "run" / "evaluation")["notes"][0].startswith("if the model was trained on photos.csv")


def test_a_model_folder_by_itself(main, place):
    """The results are in the current folder. The model may have been trained on a table of this name."""
    shutil.copytree("run/model", "models/mine")
    shutil.copy("photos.csv", "test.csv")  # the name of its stream is "test"
    done = main("evaluate", "models/mine", "test.csv", "--root", "photos", "--device", "cpu", "--threshold", "0.3")
    assert done.returncode == 0
    found = result(place / "evaluation-mine")
    assert list(found["headline"]) == ["0.5", "0.3"] and found["set"]["images"] == 60
    assert found["notes"][0].startswith("if the model was trained on test.csv, the figures are too high")
    assert sorted(path.name for path in (place / "models/mine").iterdir()) == [
        "README.md", "model.json", "model.safetensors",
    ]  # fmt: skip
    share = "--set", "stream.test_share=0.2"
    main("evaluate", "models/mine", "test.csv", "--root", "photos", "--device", "cpu", *share, "--out", "e")
    assert result(place / "e")["set"]["images"] < 30


def test_a_column_split_decides(main, place):
    (place / "split.csv").write_text(f"image,split,{A}\n0.png,train,1\n1.png,test,1\n2.png,val,0\n3.png,test,\n")
    for rows, images in (("test", 3), ("train", 1), ("all", 4)):
        out = place / rows
        given = () if rows == "test" else ("--rows", rows)
        assert (
            main("evaluate", "run", "split.csv", "--root", "photos", "--device", "cpu", "--out", out, *given).returncode
            == 0
        )
        assert result(out)["set"]["images"] == images
        assert result(out)["set"]["unknown_labels"] == (rows != "train")


def test_the_stream_of_a_run(main, small, tmp_path, monkeypatch):
    """The figures are those of the run."""
    monkeypatch.chdir(tmp_path)
    assert main("train", "--method", "fine-tuning", *small, "--out", "run", "-q").returncode == 0
    options = [word for word in small if word.startswith("stream.")]
    words = [word for option in options for word in ("--set", option)]
    done = main("evaluate", "run", "--stream", "scenes", *words, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    found, run = result(tmp_path / "run/evaluation"), json.loads((tmp_path / "run/metrics.json").read_text())["final"]
    for name in ("mAP", "CF1", "OF1"):
        assert found["headline"]["0.5"][name] == pytest.approx(run[name], abs=2e-3)
    assert found["metrics"]["conventions"]["all"] == pytest.approx(run["conventions"], abs=2e-3)
    done = main("evaluate", "run", "--stream", "scenes", *words, "--device", "cpu", "--rows", "train")
    assert "the run was trained on some of these images" in done.stdout


def test_class_names_are_not_control_characters(main, place):
    with open("photos.csv", "a") as file:
        file.write(f"1.png,{A};[red]$x_$y <b>\n")
    done = main("evaluate", "run", "photos.csv", "--root", "photos", "--device", "cpu")
    assert done.returncode == 0 and "[red]$x_$y <b>" in done.stdout
    assert "&lt;b>" in (place / "run/evaluation/report.md").read_text()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("run",), "give the labelled images: a TABLE, or --stream NAME (one of them)"),
        (("run", "photos.csv", "--stream", "scenes"), "give the labelled images: a TABLE, or --stream NAME (one of"),
        (("run", "no.csv"), "there is no table no.csv"),
        (("run", "photos.csv", "--root", "no"), "there is no folder no: give another --root DIR"),
        (("run", "photos.csv"), "none of the 60 images of photos.csv can be read (0.png: no such file): check --root"),
        (("run", "photos.csv", "--rows", "some"), "unknown rows 'some': (known: all, test, train)"),
        (("run", "photos.csv", "--rows", "train"), "photos.csv has no train row"),
        (
            ("run", "photos.csv", "--set", "stream.tasks=3"),
            "stream.tasks cannot be set for a table here: the options are stream.root, stream.separator, "
            "stream.test_share, stream.seed",
        ),
        (("run", "photos.csv", "--threshold", "0"), "--threshold must be above 0 and at most 1, not 0"),
        (("run", "photos.csv", "--threshold", "x"), "Invalid value for '--threshold'"),
        (("run", "photos.csv", "--set", "method.a=1"), "--set method.…: this command has no method"),
        (("run", "photos.csv", "--set", "sepparator=1"), "unknown option of the table 'sepparator': did you mean"),
        (("run", "photos.csv", "--save-scores", "a.txt"), "--save-scores a.txt: the name must end in .npz"),
        (("run", "photos.csv", "--out", "run/model/e"), "run/model/e is in the model folder: choose another --out"),
        (("run", "photos.csv", "--out", "photos.csv"), "cannot write to photos.csv: choose another --out"),
        (
            ("run", "photos.csv", "--save-scores", "run/model/s.npz"),
            "run/model/s.npz is in the model folder: choose another --save-scores",
        ),
        (
            ("run", "photos.csv", "--save-scores", "photos.csv/s.npz"),
            "cannot write photos.csv/s.npz: choose another --save-scores",
        ),
        (("run", "photos.csv", "--device", "tpu"), "unknown device 'tpu'"),
        (("run", "photos.csv", "--workers", "-1"), "--workers must be at least 0, not -1"),
        (("run", "photos.csv", "--batch-size", "0"), "batch_size must be 1 to"),
        (("run", "--stream", "sceens"), "unknown stream 'sceens': did you mean 'scenes'?"),
        (("run", "animals.csv", "--root", "photos"), "animals.csv and the model have no class in common (the set: gnu"),
        (("photos", "photos.csv"), "photos has no model"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(refused, place, words, line):
    (place / "animals.csv").write_text("image,labels\n0.png,gnu\n")
    assert line in refused("evaluate", *words)
    assert not (place / "run" / "evaluation").exists()


def test_the_help_has_examples(main):
    done = main("evaluate", "--help")
    assert done.returncode == 0 and "lifelabel evaluate runs/mine photos.csv --root photos" in " ".join(
        done.stdout.split()
    )


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


def test_images_of_any_size(main, place):
    Image.new("L", (300, 20)).save(place / "photos" / "0.png")
    assert main("evaluate", "run", "photos.csv", "--root", "photos", "--device", "cpu").returncode == 0
