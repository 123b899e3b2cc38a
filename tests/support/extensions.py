"""Runs on two tasks and their extension by a third one, on tables of small drawn images."""

import csv

import numpy as np
import torch
from PIL import Image

import lifelabel
from lifelabel.methods import METHODS
from support.methods import same, small_options

CLASSES = "abcdef"
COLOURS = ((200, 20, 20), (20, 200, 20), (20, 20, 200), (200, 200, 20), (20, 200, 200), (200, 20, 200))
COMMON = {"backbone": "tiny", "weights": "none", "image_size": 32, "batch_size": 4, "device": "cpu"}


def write_tables(folder):
    """Sixty images in three tasks of two classes: all.csv, its tasks 1 and 2 in two.csv, and task 3 in three.csv.

    new.csv is three.csv without the labels of old classes. In each task an image has no label, and in later tasks one
    has only those of old classes.
    """
    rng = np.random.default_rng(0)
    rows = []
    for i in range(60):
        task = i % 3
        present = rng.random(6) < 0.35
        present[2 * task + rng.integers(2)] = True
        present[2 * task + 2 :] = False
        if i in (21, 22, 23, 31, 32):
            present[2 * task if i > 30 else 0 :] = False
        pixels = np.full((40, 40, 3), rng.integers(0, 60), np.uint8)
        for k in np.flatnonzero(present):
            pixels[20 * (k // 3) :, 13 * (k % 3) : 13 * (k % 3) + 13][:20] = COLOURS[k]
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
        labels = [name for name, there in zip(CLASSES, present, strict=True) if there]
        rows.append([f"{i:02}.png", ";".join(labels), task + 1, "train" if i % 5 else "test"])
    new = [[name, ";".join(set(labels.split(";")) - set("abcd")), *rest] for name, labels, *rest in rows]
    parts = {"all": rows, "two": [row for row in rows if row[2] < 3], "three": [row for row in rows if row[2] == 3]}
    parts["new"] = [row for row in new if row[2] == 3]
    for name, part in parts.items():
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([["image", "labels", "task", "split"], *part])


def train(tables, table, out, method, labels="known", **more):
    options = {"order": "alphabetical", "labels": labels, "root": str(tables)}
    method_options = small_options(method)
    given = {"stream": str(tables / f"{table}.csv"), "stream_options": options, "method_options": method_options}
    return lifelabel.train(out, method=method, **{**given, **COMMON, **more})


def extend(tables, run, table, out, labels="known", **more):
    options = {"stream_options": {"order": "alphabetical", "labels": labels}}
    return lifelabel.extend(run, tables / f"{table}.csv", out, options, root=str(tables), **more)


def method_state(run):
    return torch.load(run / "checkpoint.pt", weights_only=True)["method"]


def assert_an_extension_equals_one_stream(tables, folder, method, labels="known"):
    """To the bit. An upper bound learns all tasks at once, so it can only be extended."""
    train(tables, "two", folder / "two", method, labels)
    result = extend(tables, folder / "two", "three", folder / "extended", labels)
    assert result.metrics["classes"] == list(CLASSES) and result.metrics["finished"]
    assert lifelabel.load(folder / "extended").classes == tuple(CLASSES)
    if not METHODS[method].joint:
        train(tables, "all", folder / "all", method, labels)
        assert same(method_state(folder / "all"), method_state(folder / "extended"))
        models = [lifelabel.load(folder / name) for name in ("all", "extended")]
        assert same(*(dict(model.network.state_dict()) for model in models))
