"""Runs with known labels of earlier tasks, and with unknown ones."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image
from support.methods import same

import lifelabel

COMMON = {"backbone": "tiny", "weights": "none", "image_size": 32, "batch_size": 4, "device": "cpu", "method": "er"}


@pytest.fixture
def table(tmp_path):
    """A function that writes a table of two tasks. In images of task 2, `old` gives the cells of the old classes."""
    rng = np.random.default_rng(0)
    labels = rng.random((40, 4)) < 0.5
    for i in range(40):
        Image.new("RGB", (32, 32), (6 * i, 0, 0)).save(tmp_path / f"{i:02}.png")

    def write(old):
        rows = [["image", "task", "split", *"abcd"]]
        for i, row in enumerate(labels.astype(int).tolist()):
            task = i % 2
            row[task * 2] = 1
            cells = [*row[:2], "", ""] if task == 0 else [old(value) for value in row[:2]] + row[2:]
            rows.append([f"{i:02}.png", task + 1, "train" if i % 5 else "test", *cells])
        with open(tmp_path / "t.csv", "w", newline="") as file:
            csv.writer(file).writerows(rows)
        return str(tmp_path / "t.csv")

    return write


def train(table, out, labels):
    options = {"labels": labels, "order": "alphabetical"}
    result = lifelabel.train(out, stream=table, stream_options=options, save_scores=True, **COMMON)
    return result.metrics, torch.load(out / "checkpoint.pt", weights_only=True)["method"]


def test_with_nothing_known_beyond_the_task_all_bits_stay_the_same(table, tmp_path):
    path = table(lambda value: "")
    task, known = (train(path, tmp_path / labels, labels) for labels in ("task", "known"))
    assert known[0] == task[0] and same(known[1], task[1])


def test_known_labels_change_what_is_learned(table, tmp_path):
    path = table(lambda value: value)
    task, known = (train(path, tmp_path / labels, labels) for labels in ("task", "known"))
    assert not same(known[1], task[1])


def test_unknown_labels_of_test_images_do_not_count(table, tmp_path):
    """The AP of a class is that of the images in which it is known."""
    metrics, _ = train(table(lambda value: ""), tmp_path / "run", "known")
    model = lifelabel.load(tmp_path / "run")
    rows = [row for row in csv.DictReader(open(tmp_path / "t.csv")) if row["split"] == "test"]
    pixels = [torch.from_numpy(np.array(Image.open(tmp_path / row["image"]))) for row in rows]
    logits = model.logits(torch.stack(pixels)).numpy()
    for k, name in enumerate("abcd"):
        is_known = np.array([row[name] != "" for row in rows])
        assert 0 < is_known.sum() < len(rows)
        truth = np.array([row[name] == "1" for row in rows])[is_known]
        expected = lifelabel.metrics.average_precision(logits[is_known, k : k + 1], truth[:, None])
        assert metrics["final"]["ap"][name] == pytest.approx(float(expected), abs=1e-6)
    with np.load(tmp_path / "run" / "scores.npz") as saved:  # `lifelabel metrics` gives the figures of the run
        scored = lifelabel.metrics.headline(1 / (1 + np.exp(-saved["logits"])), saved["labels"])
    assert scored["OF1"] == pytest.approx(metrics["final"]["OF1"])
