"""Hashes of images, and the images that a model was trained on."""

import numpy as np
import pytest
from PIL import Image
from report.small_streams import Photographs

from lifelabel.images import hashes as image_hashes
from lifelabel.images.hashes import TrainedImages, hash_images
from lifelabel.images.photographs import FileImages
from lifelabel.images.source import Names
from lifelabel.images.transforms import AUGMENTATIONS, load_batch, min_side_for


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Three photographs: a large JPEG, which is decoded at a reduced size, its copy, and a PNG."""
    folder, rng = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (90, 120, 3), np.uint8)).save(folder / "a.jpg")
    (folder / "copy.jpg").write_bytes((folder / "a.jpg").read_bytes())
    Image.fromarray(rng.integers(0, 256, (30, 30, 3), np.uint8)).save(folder / "b.png")
    return FileImages(folder, Names(["a.jpg", "copy.jpg", "b.png"]))


@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_training_and_evaluation_have_the_same_hashes(photographs, augment):
    """Whatever the augmentation is. A copy under another name has the hash of the original."""
    rows, hashes = np.arange(3), np.zeros(3, np.uint64)
    load_batch(photographs, rows, 16, augment, (1, 2), hashes=hashes)
    found, bad = hash_images(photographs, rows, min_side_for(16, augment))
    assert np.array_equal(hashes, found) and not bad
    assert hashes[0] == hashes[1] != hashes[2] and hashes.all()


def test_many_images_are_opened_by_several_processes():
    count = image_hashes._MAX_SERIAL_IMAGES + 50
    images, seen = Photographs(count, broken=[3, count - 1]), []
    found, bad = hash_images(images, np.arange(count), 16, lambda *now: seen.append(now))
    assert bad == [(3, "cut short"), (count - 1, "cut short")] and seen[-1] == (count, count)
    assert np.flatnonzero(found == 0).tolist() == [3, count - 1]
    assert found[5] == hash_images(images, np.array([5]), 16)[0]


def test_pixels_decide_and_a_name_where_they_are_not_known(photographs):
    trained = TrainedImages.of_names(image_hashes.hash_names(["left-out.jpg"]), 16)
    trained.add(["a.jpg", "b.png"], np.array([*hash_images(photographs, np.array([0]), 16)[0], np.uint64(7)]))
    trained = TrainedImages.from_bytes(trained.to_bytes(), trained.side)
    found, namesakes = trained.find(photographs, np.arange(3))
    assert found.tolist() == [True, True, False] and namesakes.tolist() == [False, False, True]
    found, namesakes = trained.find(FileImages(photographs.root, Names(["b.png", "left-out.jpg"])), np.arange(2))
    assert found.tolist() == [False, True] and namesakes.tolist() == [True, False]
    assert len(trained.to_bytes()) == 3 * image_hashes.PAIR_BYTES
