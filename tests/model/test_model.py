import dataclasses
import io
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from support import command_server, models
from support.drawn_images import quarters

import lifelabel
from lifelabel.errors import UserError
from lifelabel.images.photographs import FileImages
from lifelabel.model import Model, write_model
from lifelabel.model.model import _CPU_CHUNK
from lifelabel.streams import Names, build


@pytest.mark.parametrize("name", ["agcn", "weighted-ridge"])
def test_a_loaded_model_gives_the_scores_of_the_method(name, tmp_path):
    method = models.write(tmp_path, name, models.learned(name))
    model = lifelabel.load(tmp_path, "cpu")
    pixels = models.pixels(_CPU_CHUNK + 3)
    with torch.no_grad():
        expected = method.scores(method.setting.backbone.normalize(pixels))
    torch.testing.assert_close(model.logits(pixels), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.network(model.network.backbone.normalize(pixels)), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.probabilities(model.logits(pixels)), expected.sigmoid(), rtol=1e-4, atol=1e-4)


def test_a_pair_of_networks_with_another_normalization(tmp_path):
    """Each network gets its images in its own normalization, which is in model.json."""
    from lifelabel.nn import backbones
    from lifelabel.nn.inference import Classifier, InferenceNetwork, PooledFeatures
    from lifelabel.nn.normalize import Normalize

    torch.manual_seed(0)
    parts = [backbones.build("tiny"), backbones.build("tiny")]
    parts[1].normalize = Normalize((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    pair = backbones.PairedBackbone(parts).eval()
    network = InferenceNetwork(PooledFeatures(pair), Classifier(torch.randn(5, 512)))
    info = dataclasses.replace(
        models.info_of(models.learned("fine-tuning"), "fine-tuning"), backbone="tiny+tiny", pool="max",
        normalize=tuple({"mean": list(p.normalize.mean), "std": list(p.normalize.std)} for p in parts),
    )  # fmt: skip
    write_model(tmp_path, network, info)
    pixels = models.pixels(3)
    with torch.no_grad():
        expected = network(pair.normalize(pixels))
    torch.testing.assert_close(lifelabel.load(tmp_path, "cpu").logits(pixels), expected, rtol=1e-4, atol=1e-4)


def test_loading_and_predicting_do_not_change_the_random_state(folder):
    torch.manual_seed(3)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    lifelabel.load(folder, "cpu").predict(models.pixels(2))
    assert torch.equal(torch.get_rng_state(), before) and np.array_equal(np.random.get_state()[1], numpy_before)


def test_a_copied_folder_is_enough_in_a_new_process(folder, model, tmp_path):
    """No stream, no checkpoint, no configuration; the process reads nothing else of the run."""
    shutil.copytree(folder, tmp_path / "elsewhere")
    (path,), _ = models.write_images(tmp_path / "images", 1)
    code = "import sys, lifelabel; print(lifelabel.load(sys.argv[1], 'cpu').predict(sys.argv[2], top=5))"
    done = command_server.run("elsewhere", path, code=code, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = eval(done.stdout)
    expected = model.predict(path, top=5)
    assert found == pytest.approx(expected, abs=1e-5) and list(found) == list(expected)


def at_its_end(data):
    """As after `image.save(stream)`."""
    stream = io.BytesIO()
    stream.write(data)
    return stream


def kinds(path, pixels):
    """The same image of every kind."""
    array, image = pixels.numpy(), Image.fromarray(pixels.numpy())
    chw = pixels.permute(2, 0, 1)
    return {
        "str": str(path), "Path": path, "Pillow": image, "RGBA": image.convert("RGBA"), "array": array,
        "floats": array / 255, "float32": (array / 255).astype(np.float32), "fortran": np.asfortranarray(array),
        "tensor": chw, "HWC tensor": pixels, "float tensor": chw / 255, "half tensor": (chw.double() / 255).half(),
        "gradient": (chw / 255).requires_grad_(), "bytes": path.read_bytes(), "bytearray": bytearray(path.read_bytes()),
        "open file": open(path, "rb"), "stream": at_its_end(path.read_bytes()),
    }  # fmt: skip


def test_every_kind_of_image_gives_the_same_labels(model, tmp_path):
    (path,), (pixels,) = models.write_images(tmp_path, 1)
    expected = model.predict(path, top=5)
    probabilities = model.probabilities(model.logits(pixels[None]))[0].tolist()
    assert expected == pytest.approx(dict(zip(model.classes, probabilities, strict=True)))
    assert list(expected.values()) == sorted(expected.values(), reverse=True)
    given = kinds(path, pixels)
    for kind, image in given.items():
        assert model.predict(image, top=5) == pytest.approx(expected, abs=1e-5), kind
    many = model.predict(list(given.values()), top=5)
    assert len(many) == len(given) and all(each == pytest.approx(expected, abs=1e-5) for each in many)


def test_images_of_other_sizes_are_resized_like_files(model, tmp_path):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8))
    image.save(tmp_path / "a.png")
    expected = model.predict(tmp_path / "a.png", top=5)
    for given in (image, np.asarray(image), torch.from_numpy(np.array(image)).permute(2, 0, 1)):
        assert model.predict(given, top=5) == pytest.approx(expected, abs=1e-6)


def test_grey_images(model):
    grey = models.pixels(1)[0, :, :, 0]
    expected = model.predict(torch.stack([grey] * 3), top=5)
    for given in (grey.numpy(), grey, grey[None], grey.numpy()[:, :, None], Image.fromarray(grey.numpy())):
        assert model.predict(given, top=5) == pytest.approx(expected, abs=1e-6)


def test_pillow_images_are_upright_like_files(model, tmp_path):
    image = quarters()
    exif = Image.Exif()
    exif[274] = 6
    image.save(tmp_path / "a.png", exif=exif)
    opened = Image.open(tmp_path / "a.png")
    assert model.predict(opened, top=5) == pytest.approx(model.predict(tmp_path / "a.png", top=5), abs=1e-6)
    assert model.predict(image, top=5) != pytest.approx(model.predict(opened, top=5), abs=1e-6)


def test_many_images_are_a_list(model, tmp_path):
    paths, pixels = models.write_images(tmp_path, 4)
    expected = [model.predict(path) for path in paths]
    array = pixels.numpy()
    for many in (paths, tuple(paths), iter(paths), (str(p) for p in paths), pixels, array, pixels.permute(0, 3, 1, 2)):
        found = model.predict(many)
        assert [list(each) for each in found] == [list(each) for each in expected]
    assert model.predict([]) == [] and model.predict(paths[:1]) == expected[:1]
    assert model.predict(paths, batch_size=1) == [pytest.approx(each, abs=1e-6) for each in expected]


def test_thresholds_and_top(model, tmp_path):
    """Without an argument the thresholds of the classes count, with `top` none of them."""
    own = Model(model.network, dataclasses.replace(model.info, thresholds=(0.0, 1.0, 0.0, 1.0, 0.0)))
    pixels = models.pixels(1)[0]
    every = model.predict(pixels, threshold=0)
    assert set(own.predict(pixels)) == {"sky", "boat", "sun"} and len(every) == 5
    assert list(own.predict(pixels, top=2)) == list(every)[:2]
    middle = sorted(every.values())[2]
    assert list(own.predict(pixels, threshold=middle)) == list(every)[:3]
    assert list(own.predict(pixels, threshold=middle, top=1)) == list(every)[:1]
    assert own.predict(pixels, threshold=1) == {} and len(own.predict(pixels, top=99)) == 5
    assert model.thresholds.tolist() == [0.5] * 5 and own.thresholds.tolist() == [0, 1, 0, 1, 0]


def test_calibration_changes_probabilities_only(model):
    calibration = {"slope": [2.0] * 5, "shift": [0.0, 1.0, 2.0, 3.0, 4.0]}
    own = Model(model.network, dataclasses.replace(model.info, calibration=calibration))
    logits = own.logits(models.pixels(3))
    assert torch.equal(logits, model.logits(models.pixels(3)))
    torch.testing.assert_close(own.probabilities(logits), (2 * logits + torch.arange(5)).sigmoid())


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("none.png", "cannot use none.png: no such file"),
        (np.zeros((3, 8, 8), np.uint8), "cannot use image 0: of shape 3 x 8 x 8: give H x W x 3 or H x W"),
        (torch.zeros(2, 8, 8), "of shape 2 x 8 x 8: give 3 x H x W or H x W x 3"),
        (np.zeros((8, 8, 4), np.uint8), "of shape 8 x 8 x 4"),
        (np.zeros((0, 8, 3), np.uint8), "of shape 0 x 8 x 3"),
        (np.zeros((8, 8, 3), np.int64), "of type int64: give uint8, or floats from 0 to 1"),
        (torch.zeros(3, 8, 8, dtype=torch.int32), "of type int32"),
        (np.full((8, 8, 3), 255.0), "with values from 255 to 255: give floats from 0 to 1"),
        (torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0)), "not normalized"),
        (np.full((8, 8, 3), np.nan), "with values from nan to nan"),
        (Image.new("F", (8, 8)), "floating-point pixels"),
        ([models.pixels(1)[0], {"no": "image"}], "cannot use image 1: a dict: give a path, a Pillow image"),
        (7, "cannot read images from a int"),
        (b"", "cannot use image 0: an empty file"),
        ([b"no image"], "cannot use image 0: not an image of a known format"),
        (io.StringIO("text"), "an open file that cannot be read as bytes"),
    ],
)
def test_images_that_cannot_be_used_are_one_line(model, image, reason):
    with pytest.raises(UserError, match=reason) as error:
        model.predict(image)
    assert "\n" not in str(error.value)


def test_an_open_file_is_read_up_to_the_limit_of_a_file(model, monkeypatch):
    endless = io.BytesIO()
    endless.read = lambda size: bytes(size)
    monkeypatch.setattr("lifelabel.images.decode._MAX_FILE_BYTES", 1 << 21)
    with pytest.raises(UserError, match="cannot use image 0: a file of more than 200 MB"):
        model.predict(endless)


def test_a_bad_image_does_not_lose_the_labels_of_the_others(model, tmp_path):
    paths, _ = models.write_images(tmp_path, 3)
    expected = model.predict(paths)
    paths[1].write_bytes(b"no image")
    reason = "1.png: not an image of a known format"
    with pytest.warns(UserWarning, match=f"cannot use 1 of 3 images, whose labels are None: .*{reason}"):
        assert model.predict(paths, batch_size=2, errors="skip") == [expected[0], None, expected[2]]
    with pytest.warns(UserWarning, match="cannot use 1 of 1 image, whose"):
        assert model.predict(paths[1], errors="skip") is None
    with pytest.raises(UserError, match=reason):
        model.predict(paths)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"errors": "ignore"}, "unknown errors 'ignore'"),
        ({"threshold": 1.5}, "threshold must be 0 to 1, not 1.5"),
        ({"threshold": "high"}, "threshold must be 0 to 1"),
        ({"threshold": float("nan")}, "threshold must be 0 to 1"),
        ({"top": 0}, "top must be at least 1, not 0"),
        ({"top": 1.5}, "top must be at least 1"),
        ({"batch_size": 0}, "batch_size must be 1 to 4,096"),
    ],
)
def test_wrong_arguments_are_one_line(model, arguments, reason):
    with pytest.raises(UserError, match=reason):
        model.predict(models.pixels(1), **arguments)


def test_wrong_devices_are_one_line(folder):
    for arguments, reason in (({"device": "tpu"}, "device"), ({"precision": "int4"}, "unknown precision 'int4'")):
        with pytest.raises(UserError, match=reason):
            lifelabel.load(folder, **arguments)


@pytest.mark.parametrize("workers", [0, 2])
def test_files_are_scored_in_order_with_the_reasons_of_bad_ones(model, tmp_path, workers):
    paths, pixels = models.write_images(tmp_path, 7)
    paths[2].write_bytes(b"no image")
    paths[5].unlink()
    found = list(model.score_files(paths, batch_size=3, workers=workers))
    assert [path for path, _ in found] == [str(path) for path in paths]
    assert (found[2][1], found[5][1]) == ("not an image of a known format", "no such file")
    expected = model.probabilities(model.logits(pixels)).numpy()
    for row in (0, 1, 3, 4, 6):
        np.testing.assert_allclose(found[row][1], expected[row], atol=1e-5)


@pytest.mark.parametrize(("workers", "ahead"), [(0, 0), (1, 3)])
def test_paths_are_taken_a_few_batches_ahead(model, tmp_path, workers, ahead):
    """Any number of paths: those of a generator are not collected."""
    (path,), _ = models.write_images(tmp_path, 1)
    taken = 0

    def paths():
        nonlocal taken
        while True:
            taken += 1
            yield path

    scores = model.score_files(paths(), batch_size=4, workers=workers)
    for number in range(1, 50):
        next(scores)
        assert taken <= 4 * (-(-number // 4) + ahead)
    scores.close()


def test_no_files_are_no_scores(model):
    assert list(model.score_files([])) == []
    with pytest.raises(UserError, match="workers must be at least 0, not -1"):
        list(model.score_files(["a.png"], workers=-1))


def test_the_images_of_a_stream(model, tmp_path):
    """Photographs of some rows, and images that only a worker process may draw."""
    paths, pixels = models.write_images(tmp_path, 7)
    paths[2].write_bytes(b"no image")
    source, calls = FileImages(tmp_path, Names(path.name for path in paths)), []
    rows = np.array([6, 2, 0])
    logits, good, bad = model.score_source(source, rows, lambda *done: calls.append(done), batch_size=2)
    assert good.tolist() == [0, 2] and bad == [(2, "not an image of a known format")] and calls == [(2, 3), (3, 3)]
    np.testing.assert_allclose(logits, model.logits(pixels[[6, 0]]).numpy(), atol=1e-5)
    empty = model.score_source(source, rows[:0])
    assert empty[0].shape == (0, 5) and empty[1].shape == (0,) and empty[2] == []
    drawn = build("scenes", {"train_images": 20, "test_images": 8, "size": 32}).test.images
    logits, good, bad = model.score_source(drawn, np.arange(8))
    read = torch.stack([torch.from_numpy(np.array(drawn.read(row))) for row in range(8)])
    assert good.tolist() == list(range(8)) and not bad
    np.testing.assert_allclose(logits, model.logits(read).numpy(), atol=1e-5)


def test_relations(model):
    relations = (((1, 0.9), (4, 0.5)), (), (), (), ())
    own = Model(model.network, dataclasses.replace(model.info, relations=relations))
    assert own.relations("sky") == {"sea": 0.9, "sun": 0.5} and own.relations("sky", top=1) == {"sea": 0.9}
    assert own.relations("sea") == {}
    with pytest.raises(UserError, match="unknown class 'skye': did you mean 'sky'"):
        own.relations("skye")
    with pytest.raises(UserError, match="method fine-tuning counts no relations of labels"):
        model.relations("sky")


def test_a_saved_model_is_the_same(model, tmp_path):
    own = Model(model.network, dataclasses.replace(model.info, thresholds=(0.1,) * 5))
    own.save(tmp_path / "new" / "folder")
    again = lifelabel.load(tmp_path / "new" / "folder", "cpu")
    assert again.info == own.info and torch.equal(again.logits(models.pixels(3)), model.logits(models.pixels(3)))
    assert again.to("cpu") is again and "fine-tuning, 5 classes, 32 x 32 pixels, cpu" in repr(again)


def test_threads_do_not_disturb_each_other(tmp_path):
    """The features of weighted-ridge are recorded by hooks of the network."""
    models.write(tmp_path, "weighted-ridge")
    model = lifelabel.load(tmp_path, "cpu")
    given = [models.pixels(4, seed=seed) for seed in range(8)]
    expected = [model.logits(pixels) for pixels in given]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(model.logits, given))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["agcn", "weighted-ridge", "l3a"])
def test_the_same_on_a_gpu(name, tmp_path):
    models.write(tmp_path, name, models.learned(name))
    paths, pixels = models.write_images(tmp_path / "images", 11)
    expected = lifelabel.load(tmp_path, "cpu").logits(pixels)
    model = lifelabel.load(tmp_path, "cuda", "fp32")
    torch.testing.assert_close(model.logits(pixels), expected, rtol=2e-3, atol=2e-3)
    assert len(model._sizes) == 1 and model.logits(pixels[:1]).shape == (1, 5) and len(model._sizes) == 1
    scores = [found for _, found in model.score_files(paths, batch_size=4, workers=2)]
    np.testing.assert_allclose(np.stack(scores), expected.sigmoid().numpy(), rtol=2e-3, atol=2e-3)
    maps = [each.activation(pixels, [3, 0]) for each in (lifelabel.load(tmp_path, "cpu"), model)]
    torch.testing.assert_close(maps[1], maps[0], rtol=0, atol=0.03 * float(maps[0].abs().max()))  # TF32
    fast = lifelabel.load(tmp_path, "cuda")
    assert (fast.logits(pixels) - expected).abs().max() < 0.2 and fast.to("cpu").device.type == "cpu"
    torch.testing.assert_close(fast.logits(pixels), expected, rtol=1e-4, atol=1e-4)
