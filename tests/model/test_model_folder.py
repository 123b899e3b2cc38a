import dataclasses
import json
import os
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import models
from torch.nn.modules.module import register_module_parameter_registration_hook

import lifelabel
from lifelabel.errors import UserError
from lifelabel.images.hashes import TrainedImages
from lifelabel.model import ModelInfo, read_model, write_model
from lifelabel.nn.backbones import build
from lifelabel.utils.files import partial_name, sha256


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def change_tensors(folder, change_some):
    """Change the tensors of a folder, with a new checksum."""
    tensors = load_file(folder / "model.safetensors")
    change_some(tensors)
    path = folder / "model.safetensors"
    save_file(tensors, path)
    models.change_info(folder, sha256=sha256(path), bytes=path.stat().st_size)


def refused(path, reason):
    with pytest.raises(UserError, match=reason) as error:
        lifelabel.load(path, "cpu")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_folder_gives_back_what_was_written(folder):
    method = models.learned("fine-tuning")
    info, tensors = read_model(folder)
    assert info == models.info_of(method, "fine-tuning")
    state = method.network().state_dict()
    assert tensors.keys() == state.keys() and all(torch.equal(tensors[name], state[name]) for name in state)
    assert sorted(os.listdir(folder)) == ["README.md", "model.json", "model.safetensors"]


def test_all_optional_values_are_given_back(tmp_path):
    more = {
        "thresholds": (0.1, 0.2, 0.3, 0.4, 0.5), "relations": (((1, 0.5), (2, 0.25)), (), (), (), ((0, 1.0),)),
        "calibration": {"slope": [1.0] * 5, "shift": [0.5] * 5, "images": 7, "by": "f1", "more": [1]},
    }  # fmt: skip
    models.write(tmp_path, **more)
    info = read_model(tmp_path)[0]
    assert {name: getattr(info, name) for name in more} == more


def test_a_run_folder_is_as_good_as_its_model_folder(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run" / "model")
    assert lifelabel.load(tmp_path / "run", "cpu").info == lifelabel.load(str(folder), "cpu").info


def test_a_figure_that_is_not_a_number_is_unknown(tmp_path):
    models.write(tmp_path, training={"final": {"mAP": float("nan")}})
    assert read_model(tmp_path)[0].training == {"final": {"mAP": None}}


def test_an_edit_of_model_json_is_found(copy):
    path = copy / "model.json"
    text = path.read_text()
    about = json.loads(text)
    edits = [text.replace(about["values_sha256"], "0" * 64), text.replace(models.CLASSES[1], "x")]
    edits += [json.dumps({**about, "normalize": [{"mean": [0.1] * 3, "std": [1] * 3}]})]
    edits += [text.replace('"stream"', f'"deep": {"[" * 900}{"]" * 900}, "stream"')]
    edits += [json.dumps({name: value for name, value in about.items() if name != "values_sha256"})]
    for edit in edits:
        path.write_text(edit)
        refused(copy, "model.json is damaged")
    path.write_bytes(text.replace("\n", "\r\n").encode())  # the same values
    assert lifelabel.load(copy, "cpu").classes == models.CLASSES


def test_folders_without_a_model(tmp_path):
    refused(tmp_path, "has no model: there is no model.json in it; give the folder of a finished run")
    refused(tmp_path / "none", "is not a folder")
    (tmp_path / "config.yaml").write_text("method: agcn\n")
    refused(tmp_path, "is not finished: continue it with lifelabel train --resume")
    (tmp_path / "metrics.json").write_text('{"finished": true}')
    refused(tmp_path, "has no model: it was trained by an earlier lifelabel")


def test_other_peoples_files_are_not_models(copy):
    (copy / "model.json").write_text('{"layers": 3}')
    refused(copy, "is not a model of lifelabel")
    (copy / "model.json").write_text("[]")
    refused(copy, "is not a model of lifelabel")
    (copy / "model.json").unlink()
    refused(copy, "is not a model of lifelabel: it has model.safetensors, but no model.json")


def test_a_newer_format_is_named(copy):
    models.change_info(copy, format=2, classes=...)
    refused(copy, r"was written by a newer lifelabel \(format 2\): update lifelabel")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"kind": NaN}', "\xff", '{"a": ' + "9" * 10_000 + "}"])
def test_damaged_json(copy, text):
    (copy / "model.json").write_bytes(text.encode("latin-1"))
    refused(copy, "is damaged: it is not valid JSON|is not a model of lifelabel")


REQUIRED = [each.name for each in dataclasses.fields(ModelInfo)][:10]
BAD = {
    "classes": [
        None,
        [],
        ["sky"] * 5,
        ["a", "b", "c", "d", "e\x1b[2J"],
        ["a", "b", "c", "d", " "],
        [1, 2, 3, 4, 5],
        ...,
    ],
    "task_of_class": [None, [0], [0, 0, 1, 1, -1], [0, 0, 1, 1, "1"], [0, 0, 1, 1, True], [0, 0, 1, 1, 99], ...],
    "image_size": [None, 0, 5000, 32.5, "32", True, ...],
    "method": [3, "x" * 10**5, ...],
    "backbone": [None, 3],
    "pool": ["median", None],
    "normalize": [[], [{}], [{"mean": [0, 0, 0], "std": [0, 1, 1]}], [{"mean": [0, 0], "std": [1, 1, 1]}], None],
    "provenance": [None, {"url": 3}],
    "network": [
        None,
        {},
        {"head": 1},
        {"standardise": 1, "context": 0},
        {"standardise": False, "normalise": 1, "context": 0},
        {"parts": ["x"], "views": 1, "context": 0},
    ],
    "thresholds": [[0.5], [0.5] * 4 + [2], "0.5"],
    "calibration": [[], {}, {"slope": [1] * 5}, {"slope": [1] * 5, "shift": [None] * 5}],
    "relations": [[], [[]] * 4, [[[0]]] * 5, [[[9, 0.5]]] * 5, [[[0, 7]]] * 5, [3] * 5, 3],
    "stream": [3],
    "training": [None],
    "bytes": [None, -1, 10**15, "9"],
    "sha256": [None, 9],
    "format": [None, 0, "1"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD.items() for value in values])
def test_damaged_values(copy, key, value):
    models.change_info(copy, **{key: value})
    message = refused(copy, "model.json is damaged")
    assert message.isprintable() and len(message) < 400


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_key_is_named(name):
    values = {each: [] for each in REQUIRED if each != name}
    with pytest.raises(ValueError, match=f"^no (list )?{name}$"):
        ModelInfo.from_dict(values)


@pytest.mark.parametrize("changed", [{"kind": []}, {"sizes": [4]}, {"sizes": [2, 10**7]}])
def test_a_head_that_does_not_fit(tmp_path, changed):
    models.write(tmp_path, "csc", models.learned("csc", width=8))
    head = json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))["network"]["head"]
    models.change_info(tmp_path, network={"head": {**head, **changed}})
    refused(tmp_path, "do not fit its model.json")


def test_unknown_values_are_ignored(copy):
    models.change_info(copy, later={"more": 1}, training={"extended_from": "x"})
    assert lifelabel.load(copy, "cpu").info.training == {"extended_from": "x"}


def test_damaged_tensors(copy):
    path = copy / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    refused(copy, r"is damaged \([\d,]+ bytes, not [\d,]+\)")
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    refused(copy, "is damaged, or belongs to another model.json")
    path.write_bytes(b"\xff" * 100)
    models.change_info(copy, sha256=sha256(path), bytes=100)
    refused(copy, "is damaged")
    path.unlink()
    refused(copy, r"is damaged \(0 bytes")


def test_damaged_hashes_of_the_training_images(tmp_path):
    """They are read only where they are used."""
    method, path = models.learned("fine-tuning"), tmp_path / "training-images.bin"
    trained = TrainedImages(np.array([[3, 4], [1, 2], [3, 4]], np.uint64), 32)
    write_model(tmp_path, method.network(), models.info_of(method, "fine-tuning"), trained)
    model = lifelabel.load(tmp_path, "cpu")
    assert model.trained_images().pairs.tolist() == [[1, 2], [3, 4]] and model.trained_images().side == 32
    for data in (path.read_bytes()[:-16], path.read_bytes() + b"0" * 16, b"1" * 32, None):
        path.unlink() if data is None else path.write_bytes(data)
        with pytest.raises(UserError, match=r"training-images\.bin is damaged or missing: copy the whole model folder"):
            lifelabel.load(tmp_path, "cpu").trained_images()
    models.change_info(tmp_path, trained={"images": 1 << 40, "side": 32, "sha256": ""})
    refused(tmp_path, "is damaged .trained")


@pytest.mark.parametrize(
    "change_some",
    [
        lambda tensors: tensors.pop("classifier.weight"),
        lambda tensors: tensors.pop("features.backbone.body.0.weight"),
        lambda tensors: tensors.update({"classifier.weight": torch.zeros(5, 7)}),
        lambda tensors: tensors.update({"classifier.weight": torch.zeros(9, 256), "classifier.bias": torch.zeros(9)}),
        lambda tensors: tensors.update({"classifier.bias": torch.zeros(4)}),
        lambda tensors: tensors.update({"classifier.projection": torch.zeros(9, 9)}),
        lambda tensors: tensors.update({"features.backbone.body.0.weight": torch.zeros(1, 1, 3, 3)}),
        lambda tensors: tensors.update({"more": torch.zeros(1)}),
    ],
)
def test_tensors_that_do_not_fit(copy, change_some):
    change_tensors(copy, change_some)
    refused(copy, "the tensors in .* do not fit its model.json: ")


@pytest.mark.parametrize("backbone", ["torchvision/vit_l_16", "torchvision/regnet_y_32gf"])
def test_a_backbone_is_compared_before_it_takes_memory(copy, backbone, monkeypatch):
    """A small folder can name large networks. The second one cannot be built on the meta device."""
    made = 0

    def count(module, name, parameter):
        nonlocal made
        made += parameter.numel() if parameter is not None and parameter.device.type != "meta" else 0

    monkeypatch.setattr("lifelabel.model.model._MAX_HEAD", 1_000_000)
    models.change_info(copy, backbone="+".join([backbone] * 3), normalize=[{"mean": [0] * 3, "std": [1] * 3}] * 3)
    hook = register_module_parameter_registration_hook(count)
    refused(copy, "the tensors in .* do not fit its model.json: ")
    hook.remove()
    assert made < 10_000_000


def test_a_network_that_cannot_be_built_without_memory_is_loaded(copy):
    net = build("torchvision/regnet_y_400mf")
    tensors = {f"features.backbone.{name}": tensor for name, tensor in net.state_dict().items()}
    head = {"classifier.weight": torch.zeros(5, net.dim), "classifier.bias": torch.zeros(5)}
    change_tensors(copy, lambda found: (found.clear(), found.update({**tensors, **head})))
    models.change_info(copy, backbone="torchvision/regnet_y_400mf")
    assert lifelabel.load(copy, "cpu").logits(models.pixels(1)).shape == (1, 5)


def test_a_card_that_fails_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("lifelabel.model.model_folder.model_card", lambda info: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        models.write(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.full((5,), torch.nan), "classifier.bias is not finite"),
        (torch.zeros(5).half(), "the type of classifier.bias"),
    ],
)
def test_tensors_of_wrong_values(copy, tensor, reason):
    change_tensors(copy, lambda tensors: tensors.update({"classifier.bias": tensor}))
    refused(copy, rf"is damaged \({reason}\)")


def test_a_backbone_of_a_plug_in_is_named_and_not_imported(copy, plugin_state, tmp_path):
    (tmp_path / "my_net.py").write_text("raise SystemExit('imported')\n")
    models.change_info(copy, backbone="my-net", training={"plugins": ["my_net.py"]})
    message = refused(copy, "needs a plug-in for its backbone my-net: give --plugin my_net.py, which runs its code")
    assert "lifelabel.load_plugin" in message
    models.change_info(copy, backbone="my_net:Net")
    refused(copy, "needs a plug-in for its backbone my_net:Net")
    models.change_info(copy, training={})
    refused(copy, "needs a plug-in for its backbone my_net:Net: give --plugin my_net,")
    models.change_info(copy, backbone="nothing")
    refused(copy, "unknown backbone 'nothing'")


def test_a_plug_in_backbone_loads_with_its_plug_in(copy, plugin_state, tmp_path):
    models.change_info(copy, backbone="my_tiny:net", training={"plugins": ["my_tiny.py"]})
    code = (
        "from lifelabel import backbones\ndef net(pool, weights):\n    return backbones.build('tiny', pool, weights)\n"
    )
    (tmp_path / "my_tiny.py").write_text(code)
    lifelabel.load_plugin("my_tiny.py")
    assert lifelabel.load(copy, "cpu").logits(models.pixels(2)).shape == (2, 5)


def test_the_number_of_networks_must_fit(copy):
    models.change_info(copy, backbone="tiny+tiny")
    refused(copy, "model.json is damaged .normalize.")


def test_a_model_is_written_completely_or_not_at_all(tmp_path, monkeypatch):
    """A crash before the end leaves no model.json, and no temporary file."""
    monkeypatch.setattr("lifelabel.model.model_folder.write_text", lambda path, text: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        models.write(tmp_path)
    assert os.listdir(tmp_path) == ["model.safetensors"]
    assert not (tmp_path / partial_name("model.safetensors")).exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    method = models.learned("fine-tuning")
    with pytest.raises(UserError, match=r"cannot write .*choose another folder"):
        write_model(tmp_path / "file" / "model", method.network(), models.info_of(method, "fine-tuning"))


def test_writing_does_not_change_the_network(tmp_path):
    method = models.learned("agcn")
    before = {name: tensor.clone() for name, tensor in method.network().state_dict().items()}
    models.write(tmp_path, "agcn", method)
    after = method.network().state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_info_is_checked_when_it_is_made(model):
    with pytest.raises(ValueError, match="thresholds"):
        dataclasses.replace(model.info, thresholds=(0.5,))
    assert ModelInfo.from_dict(json.loads(json.dumps(model.info.to_dict()))) == model.info


def test_the_weights_say_what_they_were_trained_on(folder):
    """As `--weights FILE` reads it."""
    from lifelabel.nn.weights import read_file

    assert re.fullmatch(r"nothing \+ test", read_file(folder / "model.safetensors").provenance().trained_on)
