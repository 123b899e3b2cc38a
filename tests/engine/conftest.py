"""Photographs that several test files use."""

import numpy as np
import pytest
from engine.small_runs import BAD, ON_PHOTOGRAPHS
from PIL import Image


@pytest.fixture
def photographs(tmp_path):
    """Sixty images, each of another colour. Four cannot be read. Returns the options of a run, and the labels."""
    root, rng = tmp_path / "photos", np.random.default_rng(0)
    root.mkdir()
    labels = rng.random((60, 4)) < 0.5
    lines = ["image,split,a,b,c,d"]
    for i, row in enumerate(labels):
        lines.append(f"{i}.png,{'test' if i % 4 == 0 else 'train'}," + ",".join(map(str, row.astype(int))))
        Image.new("RGB", (9, 9), (4 * i, 0, 0)).save(root / f"{i}.png")
    for name, reason in BAD.items():
        (root / name).write_bytes(b"\x89PNG\r\n" if reason == "corrupt" else b"")
    (root / "13.png").unlink()
    (tmp_path / "t.csv").write_text("\n".join(lines))
    stream_options = {"root": str(root), "tasks": 2, "order": "source", "protocol": "overlap", "labels": "task"}
    more = {**ON_PHOTOGRAPHS, "batch_size": 4, "augment": "none", "max_skipped": 1.0}
    return {"stream": str(tmp_path / "t.csv"), "stream_options": stream_options, **more}, labels
