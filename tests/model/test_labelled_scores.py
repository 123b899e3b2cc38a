"""The scores of a model for labelled images: classes are matched by name, unreadable images are left out."""

import dataclasses

import numpy as np
import pytest
import torch
from support import models

import lifelabel
from lifelabel.errors import UserError
from lifelabel.model.labelled_scores import score_labelled
from lifelabel.streams.labelled_set import from_table


def labelled(folder, rows, count=6):
    _, pixels = models.write_images(folder / "photos", count)
    path = folder / "photos.csv"
    path.write_text("image,labels\n" + "\n".join(rows) + "\n")
    return from_table(path, folder / "photos"), pixels


def test_labels_are_those_of_the_classes_of_the_model(model, tmp_path):
    a, b = model.classes[3], model.classes[1]
    rows = [f"0.png,{a};other", f"1.png,{b}", f"2.png,?{a};{b}", "9.png,other", f"3.png,{a}", "4.png,"]
    images, pixels = labelled(tmp_path, rows, 5)
    (tmp_path / "photos" / "3.png").write_text("no image")
    progress = []
    found = score_labelled(model, images, lambda *numbers: progress.append(numbers), batch_size=2)
    assert found.common.tolist() == [1, 3] and found.ignored == ["other"]
    assert sorted(found.skipped) == [("3.png", "not an image of a known format"), ("9.png", "no such file")]
    assert found.labels[:, [1, 3]].tolist() == [[False, True], [True, False], [True, False], [False, False]]
    assert found.known[:, [1, 3]].tolist() == [[True, True], [True, True], [True, False], [True, True]]
    assert not found.labels[:, [0, 2, 4]].any() and not found.known[:, [0, 2, 4]].any()
    expected = model.logits(pixels[:3]).numpy()
    np.testing.assert_allclose(found.logits[:3], expected, rtol=1e-4, atol=1e-4)
    assert progress[-1] == (6, 6) and len(found) == 4
    part = images.parts[0]
    names = [part.images.name(int(part.rows[position])) for position in found.position]
    assert names == ["0.png", "1.png", "2.png", "4.png"] and not found.part.any()


def test_calibrated_logits_give_the_probabilities_of_the_model(model, tmp_path):
    images, _ = labelled(tmp_path, [f"0.png,{model.classes[0]}", "1.png,"])
    found = score_labelled(model, images)
    assert found.calibrated(model) is found.logits
    calibration = {"slope": [0.5, 1, 2, 3, 0.1], "shift": [0, 1, -1, 2, -2]}
    changed = lifelabel.Model(model.network, dataclasses.replace(model.info, calibration=calibration))
    expected = changed.probabilities(torch.from_numpy(found.logits)).numpy()
    np.testing.assert_allclose(1 / (1 + np.exp(-found.calibrated(changed))), expected, rtol=1e-5)


def test_no_class_in_common_and_no_readable_image(model, tmp_path):
    images, _ = labelled(tmp_path, ["0.png,unicorn"])
    with pytest.raises(UserError, match=r"photos.csv and the model have no class in common \(the set: unicorn; the "):
        score_labelled(model, images)
    images, _ = labelled(tmp_path, [f"x.png,{model.classes[0]}"])
    with pytest.raises(UserError, match=r"none of the images of photos.csv can be read \(x.png: no such file\): check"):
        score_labelled(model, images)
