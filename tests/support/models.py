"""Small models for tests: a method that has learned two tasks, and its model folder."""

import json

import numpy as np
import torch
from PIL import Image

from lifelabel.model import ModelInfo, write_model
from lifelabel.model.model_folder import _values_sha256
from support import methods

SIZE = 32
CLASSES = tuple(name for names in methods.TASKS[:2] for name in names)


def learned(name, **options):
    """A method that has learned two tasks of five classes."""
    return methods.learned(methods.make(name, **{**methods.small_options(name), **options}), tasks=2, steps=3)


def info_of(method, name, **more):
    """The information that a run writes about its model."""
    backbone, network = method.setting.backbone, method.network()
    training = {
        "final": {"mAP": 0.5, "CF1": 0.4, "OF1": 0.3, "forgetting": {"mAP": 0.1, "CF1": 0.1, "OF1": None}},
        "ap": dict.fromkeys(CLASSES, 0.5), "images": [12, 12], "seed": 0, "date": "2026-01-01", "plugins": [],
    }  # fmt: skip
    given = {
        "classes": CLASSES, "task_of_class": (0, 0, 1, 1, 1), "image_size": SIZE, "method": name, "label": name,
        "backbone": "tiny", "pool": backbone.pool, "provenance": backbone.provenance.to_dict(),
        "normalize": tuple({"mean": list(p.normalize.mean), "std": list(p.normalize.std)} for p in backbone.parts),
        "network": network.describe(), "stream": {"name": "test", "fingerprint": "0" * 64}, "training": training,
    }  # fmt: skip
    return ModelInfo(**{**given, **more})


def write(folder, name="fine-tuning", method=None, **more):
    """Write the model folder of a method. Returns the method."""
    method = method or learned(name)
    write_model(folder, method.network(), info_of(method, name, **more))
    return method


def change_info(folder, **values):
    """Change values of model.json, with its new digest. `...` removes one."""
    path = folder / "model.json"
    about = {**json.loads(path.read_text()), **values}
    about = {key: value for key, value in about.items() if value is not ...}
    path.write_text(json.dumps({**about, "values_sha256": _values_sha256(about)}))


def pixels(count=5, size=SIZE, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), np.uint8))


def write_images(folder, count, size=SIZE, suffix=".png", seed=0):
    """Write images of noise: 0.png, 1.png … Returns their paths and pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    given = pixels(count, size, seed)
    paths = [folder / f"{i}{suffix}" for i in range(count)]
    for path, each in zip(paths, given, strict=True):
        Image.fromarray(each.numpy()).save(path)
    return paths, given
