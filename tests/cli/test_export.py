"""`lifelabel export`."""

import re

import pytest
from support import models


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "model"
    models.write(folder, "weighted-ridge")
    return folder


def test_a_run_is_exported_and_compared(agcn_run, tmp_path, main):
    images = tmp_path / "images"
    models.write_images(images, 2, size=50)
    models.write_images(images / "below", 1, size=50, suffix=".webp")
    done = main("export", agcn_run, "--preprocess", "--images", images, "--out", tmp_path / "a")
    assert done.returncode == 0, done.stderr
    first, second, third, last = done.stdout.splitlines()
    assert re.fullmatch(r"largest difference from the model: \d\.\de-\d\d, 11 images in batches of 1 to 8", first)
    assert re.fullmatch(r"largest difference with images of other sizes, which are resized: \d\.\de-\d\d", second)
    assert re.fullmatch(r"images/s: [\d.e+]+ in ONNX Runtime, [\d.e+]+ in lifelabel, ratio [\d.]+", third)
    assert last == f"written to {tmp_path / 'a'}: README.md, model.onnx"
    assert done.stderr == ""


def test_a_model_folder_is_exported_as_a_program_of_torch(model_folder, tmp_path, main, output, refused):
    command = ["export", model_folder, "--format", "torch-export", "--out", tmp_path / "a"]
    text = output(*command)
    assert "in torch" in text and text.endswith("README.md, model.json, model.pt2\n")
    assert "--overwrite" in refused(*command)
    assert main(*command, "--overwrite").returncode == 0


def test_mistakes_are_one_line(model_folder, tmp_path, refused):
    out = tmp_path / "a"
    assert refused("export", model_folder) == "Missing option '--out'; see --help"
    assert "is not a folder" in refused("export", tmp_path / "nothing", "--out", out)
    assert "unknown format" in refused("export", model_folder, "--format", "tflite", "--out", out)
    line = refused("export", model_folder, "--images", tmp_path, "--out", out)
    assert line == f"--images {tmp_path}: no image in this folder; give another folder or a file"
    assert not out.exists()
