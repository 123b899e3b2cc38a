"""Files of weights: what they contain, what is refused, and which tensors fit."""

import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lifelabel.errors import UserError
from lifelabel.nn import weights
from lifelabel.nn.weights import WeightFile, read_file


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
def test_the_training_data_of_a_file(name, tensors, expected, tmp_path):
    folder = tmp_path / "coco"  # the name of the folder is not used
    folder.mkdir()
    file = read_file(save(folder / name, tensors))
    found = file.provenance()
    assert (found.trained_on, found.source) == (expected, f"file {folder / name}")
    assert found.sha256 == weights.sha256(folder / name)


def test_the_metadata_of_a_safetensors_file_have_priority(tmp_path):
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


def broken_name(path):
    """The name of a member is not UTF-8, although the archive says so."""
    torch.save({"a": torch.ones(2)}, path)
    path.write_bytes(path.read_bytes().replace(b"/data.pkl", b"/d\xff\x80a.pkl"))


def new_version(path):
    """An archive of a version that does not exist."""
    torch.save({"a": torch.ones(2)}, path)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 6] = 250
    path.write_bytes(data)


def no_tensors(path):
    torch.save({"epoch": 3, "state_dict": {"lr": 0.1}}, path)


def a_tensor(path):
    torch.save(torch.ones(2), path)


def sparse_giant(path):
    with open(path, "wb") as file:
        file.truncate(weights._MAX_BYTES + 1)


def bomb(path):
    """A small file that is large when it is unpacked."""
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
        (lambda path: path.mkdir(), "a.pth", "is not a regular file"),
        (save, "a.onnx", "is not a file of weights: give one that ends in .safetensors, .pth, .pt, .bin"),
        (lambda path: path.write_bytes(b""), "a.pth", "damaged"),
        (lambda path: path.write_bytes(b"not weights"), "a.pt", "damaged"),
        (lambda path: path.write_bytes(b"not weights"), "a.safetensors", "damaged"),
        (cut, "a.pth", "damaged"),
        (broken_name, "a.pth", "damaged"),
        (new_version, "a.pth", "damaged"),
        (bare_pickle, "a.pth", "damaged, or holds more than tensors"),
        (evil, "a.bin", "damaged, or holds more than tensors"),
        (no_tensors, "a.pth", "no state dict"),
        (a_tensor, "a.pth", "no state dict"),
        (lambda path: torch.save({}, path), "a.pth", "no state dict"),
        (sparse_giant, "a.pth", "more than 4 GiB"),
    ],
)
def test_a_file_that_cannot_be_used_gives_an_error_of_one_line(make, name, message, tmp_path):
    path = tmp_path / name
    make(path)
    with pytest.raises(UserError, match=message) as caught:
        read_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Evil.ran


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "_MAX_BYTES", 2**30)
    bomb(tmp_path / "a.pth")
    with pytest.raises(UserError, match="more than 1 GiB"):
        read_file(tmp_path / "a.pth")


def test_a_package_that_is_not_installed_has_no_weights():
    assert weights.packaged("no-such-package") is None


def layers():
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))


def test_tensors_of_the_same_shape_in_another_order_are_not_mixed_up(tmp_path):
    """safetensors sorts names, so that the bias of a batch norm is before its weight."""
    state, body = {f"my_{name}": tensor for name, tensor in layers().state_dict().items()}, layers()
    weights.fit(WeightFile(tmp_path / "a.pth", state, "00"), body, body, "small")
    assert torch.equal(body[0].weight, state["my_0.weight"])
    in_order = {name: state[name] for name in sorted(state)}
    with pytest.raises(UserError, match=r"does not fit small: 10 tensors differ, the first is 0\.weight"):
        weights.fit(WeightFile(tmp_path / "a.safetensors", in_order, "00"), body, body, "small")


@pytest.mark.parametrize("odd", [torch.ones(4).to_sparse(), torch.ones(4, device="meta"), torch.ones(4).int()])
def test_tensors_of_another_layout_device_or_type_do_not_fit(odd, tmp_path):
    body = layers()
    file = WeightFile(tmp_path / "a.pth", {**body.state_dict(), "1.bias": odd}, "00")
    with pytest.raises(UserError, match=r"1 tensor differs, the first is 1\.bias"):
        weights.fit(file, body, body, "small")
