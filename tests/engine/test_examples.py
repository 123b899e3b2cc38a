"""What a run writes for reports: the examples that it chooses, and the files of a real run."""

import io

import numpy as np
import pytest
import torch
from engine.small_runs import SMALL, options
from PIL import Image

from lifelabel import train
from lifelabel.engine.evaluator import choose_examples, example_positions, picture


def test_examples_are_spread_over_the_test_images():
    found = example_positions(1000, 80)
    assert len(found) == 256 and found[0] == 0 and found[-1] == 999
    assert np.diff(found).max() <= 4


def test_the_most_confident_mistakes_are_first():
    labels = np.array([[1, 0], [1, 0], [1, 0], [0, 1]], bool)
    p = np.array([[0.9, 0.1], [0.9, 0.8], [0.05, 0.1], [0.2, 0.6]])
    known = np.ones_like(labels)
    assert choose_examples(p, labels, known, 4).tolist() == [2, 1, 3, 0]
    assert choose_examples(p, labels, known, 2).tolist() == [2, 1]
    known[2, 0] = False  # an unknown label is not missed
    assert choose_examples(p, labels, known, 4).tolist() == [1, 3, 0, 2]


def test_a_picture_is_a_small_jpeg():
    image = Image.open(io.BytesIO(picture(torch.zeros(300, 300, 3, dtype=torch.uint8))))
    assert image.format == "JPEG" and image.size == (160, 160)


@pytest.mark.parametrize("pictures", [0, 5])
def test_the_files_of_a_run(tmp_path, pictures):
    run = train(tmp_path / "run", options(method="fine-tuning", pictures=pictures))
    folder, tasks = tmp_path / "run" / "details", len(run.metrics["tasks"])
    for number in range(1, tasks + 1):
        with np.load(folder / f"task-{number}.npz") as task:
            assert task["scores"].shape[1] == len(task["ap"]) == sum(map(len, run.metrics["tasks"][:number]))
    with np.load(folder / f"task-{tasks}.npz") as last, np.load(folder / "examples.npz") as examples:
        final = run.metrics["final"]["ap"]
        assert last["ap"].tolist() == pytest.approx([final[name] for name in run.metrics["classes"]])
        assert len(examples["chosen"]) == len(examples["picture_ends"]) == pictures
    one = {**SMALL, "tasks": 1}
    train(tmp_path / "run", options(method="fine-tuning", pictures=0, stream_options=one), overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == ["examples.npz", "task-1.npz"]
