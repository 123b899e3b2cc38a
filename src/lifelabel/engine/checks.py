"""Checks of the images of a stream, before a run starts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lifelabel.config.config import Config
from lifelabel.engine.label_server import StreamInfo
from lifelabel.engine.run_folder import RunFolder
from lifelabel.errors import UserError

__all__ = ["check_images"]


def check_images(info: StreamInfo, config: Config, folder: RunFolder, note: Callable[[str], None]) -> None:
    """Report missing images to `note`. Refuse a stream if there is nothing to learn from or to score."""
    for line in info.problems:
        note(line)
    if sum(info.missing):
        _check_missing(info, config, folder, note)
    if not len(info.test_rows):
        raise UserError(f"stream {info.name} has no test image: nothing could be scored")
    for task, size in zip(info.tasks, info.sizes, strict=True):
        if not size:
            names = ", ".join(task.classes)
            raise UserError(
                f"task {task.index + 1} ({names}) has no training image that has a file: `lifelabel data inspect` "
                "lists what is missing; remove its classes, or add the images"
            )


def _check_missing(info: StreamInfo, config: Config, folder: RunFolder, note: Callable[[str], None]) -> None:
    row, source = next((int(np.argmin(s.present)), s) for s in (info.train, info.test) if not s.present.all())
    missing = sum(info.missing)
    total = missing + info.joint_size + len(info.test_rows)
    root = getattr(config.stream_options, "root", None)
    where = f"under {root}" if root else "(no folder was given)"
    what = f"{missing:,} of {total:,} images have no file, such as {source.name(row)} {where}"
    if not info.joint_size or not len(info.test_rows):
        if info.image_size:
            raise UserError(f"{info.name} is drawn, and its manifest holds no images: train with --stream {info.name}")
        if folder.is_run:
            raise UserError(f"{what}: if they moved, edit root in {folder / 'config.yaml'}")
        raise UserError(f"{what}: give the folder of the images with --root DIR")
    if config.strict:
        raise UserError(f"{what}: leave out --strict to train without them")
    note(f"{what}: left out")
