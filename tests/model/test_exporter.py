"""Exports of models, compared with the models."""

import functools
import json
import math
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import command_server, models
from torchvision.models import VisionTransformer

import lifelabel
from lifelabel.errors import UserError
from lifelabel.model.exporter import PixelNetwork, ProbabilityNetwork, onnx_program, torch_program
from lifelabel.nn.backbone import Layout
from lifelabel.nn.backbones import Backbone, build
from lifelabel.nn.frozen_features import PARTS, PartFeatures
from lifelabel.nn.inference import Classifier, InferenceNetwork, PooledFeatures
from lifelabel.nn.library_backbones import TorchvisionTransformer
from lifelabel.nn.onnx_runtime import open_session

CALIBRATION = {"slope": [0.5, 1, 2, 1.5, 1], "shift": [0.1, -0.2, 0, 0.3, 1]}


@functools.cache
def network_of(name):
    return models.learned(name).network().eval()


def assert_equal_for_batches(run, network, given):
    with torch.no_grad():
        expected = network(given)
    for count in (1, 2, 5):
        torch.testing.assert_close(run(given[:count]), expected[:count], rtol=0, atol=1e-4)


def in_onnx_runtime(program):
    session = open_session(program.model_proto.SerializeToString())
    name = session.get_inputs()[0].name
    return lambda given: torch.from_numpy(session.run(["probabilities"], {name: given.numpy()})[0])


def network_on(backbone, parts=True):
    """A network with random weights on a backbone, with the classifier that a file of weights would have."""
    torch.manual_seed(0)
    backbone = build(backbone).eval()
    for part in backbone.parts:
        if part.layout.order == "NCHW":
            part.classifier = torch.randn(10, part.dim) / part.dim**0.5, torch.zeros(10)
    features = PartFeatures(backbone, PARTS, 2) if parts else PooledFeatures(backbone)
    with torch.no_grad():
        dim = features(torch.zeros(1, 3, 64, 64)).shape[1]
    return ProbabilityNetwork(InferenceNetwork(features, Classifier(torch.randn(4, dim) / dim**0.5)))


@pytest.mark.parametrize(
    ("backbone", "parts"),
    [
        ("resnet18", True),
        ("efficientnet-lite0", True),
        ("timm/vit_tiny_patch16_224", True),
        ("torchvision/mobilenet_v3_small", False),
        ("timm/convnext_atto", False),
        ("tiny+resnet18", False),
    ],
)
def test_every_family_of_backbones_is_exported(backbone, parts):
    network = network_on(backbone, parts)
    images = torch.randn(5, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert_equal_for_batches(torch_program(network, 64).module(), network, images)


def test_a_transformer_of_torchvision_is_exported():
    """A small one: the smallest with a name has 86 million weights."""
    vit = VisionTransformer(image_size=32, patch_size=8, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=16)
    layout = Layout("NLC", 16, prefix=1, class_token=True, patch=(8, 8))
    backbone = Backbone(TorchvisionTransformer(vit), 16, "max", layout=layout).eval()
    network = ProbabilityNetwork(InferenceNetwork(PartFeatures(backbone, PARTS, 2), Classifier(torch.randn(4, 32))))
    images = torch.randn(5, 3, 44, 44, generator=torch.Generator().manual_seed(0))  # the positions are resized
    assert_equal_for_batches(torch_program(network, 44).module(), network, images)


def test_a_pair_of_backbones_runs_in_onnx_runtime():
    network = network_on("tiny+tiny")
    images = torch.randn(5, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert_equal_for_batches(in_onnx_runtime(onnx_program(network, 64)), network, images)


def photograph(height, width):
    """A smooth image with noise."""
    small = np.random.default_rng(height).integers(0, 256, (9, 9, 3), np.uint8)
    noise = np.random.default_rng(width).integers(-9, 10, (height, width, 3))
    return (np.asarray(Image.fromarray(small).resize((width, height))) + noise).clip(0, 255).astype(np.uint8)


def test_pixels_of_any_size_are_resized_as_pillow_does():
    network = ProbabilityNetwork(network_of("fine-tuning"))
    whole = PixelNetwork(network, models.SIZE)
    program = torch_program(whole, models.SIZE).module()
    for run in (whole, program, in_onnx_runtime(onnx_program(whole, models.SIZE))):
        for shape in ((32, 32), (20, 47), (100, 64), (301, 200)):
            pixels = photograph(*shape)
            resized = np.asarray(Image.fromarray(pixels).resize((models.SIZE,) * 2, Image.Resampling.BILINEAR))
            with torch.no_grad():
                expected = network(whole.normalize(torch.from_numpy(resized.copy())[None]))
                found = run(torch.from_numpy(pixels)[None])
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    more = {"label": "fine-tuning, lr 0.1", "calibration": {**CALIBRATION, "images": 7, "by": "f1", "set": "mine.csv"}}
    models.write(folder / "model", thresholds=(0.5, 0.4, 0.3, 0.2, 0.1), **more)
    return folder


@pytest.fixture(scope="module")
def exported(run_folder, tmp_path_factory):
    """The ONNX export with preprocessing, and its check on a photograph."""
    folder = tmp_path_factory.mktemp("exports")
    Image.fromarray(photograph(90, 120)).save(folder / "photo.png")
    check = lifelabel.export(run_folder, folder / "a", preprocess=True, images=[folder])
    return folder / "a", check


def test_an_export_reports_how_it_compares_with_the_model(exported):
    folder, check = exported
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "model.onnx"] == sorted(check.files)
    assert check.images == 9
    assert check.difference <= 1e-4 and check.resize_difference <= 0.05
    assert check.speed > 0 and math.isfinite(check.speed / check.model_speed)


def test_an_onnx_file_says_what_it_needs(exported, run_folder):
    session = open_session(exported[0] / "model.onnx")
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == list(models.CLASSES)
    assert json.loads(about["thresholds"]) == [0.5, 0.4, 0.3, 0.2, 0.1]
    assert json.loads(about["calibration"]) == CALIBRATION
    assert (about["method"], about["label"]) == ("fine-tuning", "fine-tuning, lr 0.1")
    assert (json.loads(about["image_size"]), about["color_order"]) == (models.SIZE, "RGB")
    assert json.loads(about["mean"]) == [0.5] * 3 and json.loads(about["std"]) == [0.25] * 3
    assert about["model_sha256"] == json.loads((run_folder / "model" / "model.json").read_text())["sha256"]
    (given,), (output,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.type, given.shape) == ("pixels", "tensor(uint8)", ["batch", "height", "width", 3])
    assert (output.name, output.shape) == ("probabilities", ["batch", 5])
    assert str(lifelabel.__file__).encode() not in (exported[0] / "model.onnx").read_bytes()


def turned(path):
    """Write a photograph that its EXIF data turn upright."""
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(photograph(90, 120)).save(path, quality=95, exif=exif)


def run_readme(folder):
    """The output of the program in README.md, run in the folder on photo.jpg."""
    turned(folder / "photo.jpg")
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    done = command_server.run(code=code, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder / "photo.jpg").unlink()
    return {name: float(value) for value, name in (line.split(" ", 1) for line in done.stdout.splitlines())}


def assert_readme_works(folder, run_folder, tmp_path):
    turned(tmp_path / "photo.jpg")
    expected = lifelabel.load(run_folder, "cpu").predict(Image.open(tmp_path / "photo.jpg"))
    assert expected
    assert run_readme(folder) == pytest.approx(expected, abs=2e-3)


def test_the_readme_has_a_program_that_works(exported, run_folder, tmp_path):
    assert_readme_works(exported[0], run_folder, tmp_path)


@pytest.mark.parametrize("format", ["onnx", "torch-export"])
def test_the_readme_without_preprocessing_works_too(format, run_folder, tmp_path):
    check = lifelabel.export(run_folder, tmp_path / "a", format)
    assert check.resize_difference is None
    assert_readme_works(tmp_path / "a", run_folder, tmp_path)


def test_a_program_of_torch_has_its_description_beside_it(run_folder, tmp_path):
    check = lifelabel.export(run_folder, tmp_path / "a", "torch-export", preprocess=True)
    assert sorted(check.files) == ["README.md", "model.json", "model.pt2"]
    about = json.loads((tmp_path / "a" / "model.json").read_text())
    assert about["input"] == "pixels: uint8, batch x height x width x 3" and about["classes"] == list(models.CLASSES)


def test_a_program_of_torch_has_no_pickled_object_and_no_path(run_folder, tmp_path):
    lifelabel.export(run_folder, tmp_path / "a", "torch-export")
    with zipfile.ZipFile(tmp_path / "a" / "model.pt2") as archive:
        contents = {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}
    assert contents["data/sample_inputs/model.pt"] == b""
    for kind in ("weights", "constants"):
        config = json.loads(contents[f"data/{kind}/model_{kind}_config.json"])["config"]
        assert config and not any(entry["use_pickle"] for entry in config.values())
    assert b".py" not in contents["models/model.json"]


def test_safetensors_is_the_model_folder(run_folder, tmp_path):
    check = lifelabel.export(run_folder, tmp_path / "a", "safetensors")
    assert check.difference <= 1e-6
    for name in ("model.safetensors", "model.json", "README.md"):
        assert (tmp_path / "a" / name).read_bytes() == (run_folder / "model" / name).read_bytes()


def refused(*args, **options):
    with pytest.raises(UserError) as error:
        lifelabel.export(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_export_that_differs_is_not_written(run_folder, tmp_path, monkeypatch):
    out = tmp_path / "a"
    monkeypatch.setattr("lifelabel.model.exporter._TOLERANCE", -1.0)
    assert "differs from that of the model" in refused(run_folder, out, "torch-export")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setattr(torch.export, "save", lambda program, path: 1 / 0)
    assert refused(run_folder, out, "torch-export").endswith("division by zero; use --format safetensors")
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_not_replaced(run_folder, tmp_path):
    out = tmp_path / "a"
    out.mkdir()
    lifelabel.export(run_folder, out, "torch-export")  # an empty folder
    assert refused(run_folder, out, "torch-export").endswith("choose another --out, or replace it with --overwrite")
    (out / "mine.txt").write_text("mine")
    (out / "model.pt2").write_bytes(b"old")
    lifelabel.export(run_folder, out, "torch-export", overwrite=True)
    assert (out / "mine.txt").read_text() == "mine" and (out / "model.pt2").stat().st_size > 1000
    assert "has no model.onnx to replace" in refused(run_folder, out, "onnx", overwrite=True)
    model = run_folder / "model"
    assert "the model itself" in refused(run_folder, model, "safetensors", overwrite=True)
    assert "is a file" in refused(run_folder, model / "model.json", "onnx")
    assert list(tmp_path.iterdir()) == [out]


def test_the_parent_of_a_folder_that_exists_is_not_written(run_folder, tmp_path, monkeypatch):
    """It may be read-only, or the folder may be on another disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "disk", target_is_directory=True)
    made, mkdir = [], Path.mkdir
    monkeypatch.setattr(
        Path, "mkdir", lambda path, *args, **more: made.append(path.parent) or mkdir(path, *args, **more)
    )
    lifelabel.export(run_folder, tmp_path / "a", "safetensors")
    assert made and tmp_path not in made
    assert sorted(file.name for file in (tmp_path / "disk").iterdir()) == [
        "README.md", "model.json", "model.safetensors",
    ]  # fmt: skip


def test_impossible_options_are_refused(run_folder, tmp_path):
    out = tmp_path / "a"
    assert "did you mean 'onnx'" in refused(run_folder, out, "onyx")
    assert "takes images of any size" in refused(run_folder, out, "safetensors", preprocess=True)
    assert "has no meaning" in refused(run_folder, out, "torch-export", opset=20)
    assert "at least 18, not 11" in refused(run_folder, out, opset=11)
    assert "has no model" in refused(tmp_path, out)
    assert "no such file" in refused(run_folder, out, "torch-export", images=[tmp_path / "none.jpg"])
    assert list(tmp_path.iterdir()) == []


def test_the_version_of_the_operators_can_be_chosen(run_folder, tmp_path):
    onnx = pytest.importorskip("onnx")
    lifelabel.export(run_folder, tmp_path / "a", opset=18)
    assert onnx.load(tmp_path / "a" / "model.onnx").opset_import[0].version == 18
    assert refused(run_folder, tmp_path / "b", opset=99).endswith("cannot write opset 99; use another --opset")


def test_without_the_extra_one_line_says_what_to_install(run_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert refused(run_folder, tmp_path / "a").endswith("pip install 'lifelabel[export]'")
