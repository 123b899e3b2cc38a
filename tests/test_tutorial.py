"""docs/tutorial.md: its commands, in order, on made-up photographs, and the program of its export."""

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import command_server

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
MONTHS = {"april": "abcdef", "may": "ghijkl", "june": "mnop", "check": "abcdefghijklmnop", "new": "abcdefghijklmnop"}
SMALL = ["--image-size", "64", "--device", "cpu", "--set", "method.features=[map,stages]"]
SMALL += ["--set", "method.directions=64"]
"""All features and directions take 12 seconds more."""


@pytest.fixture
def tutorial(tmp_path):
    """Photographs with a coloured square for each class, and the tables of the page."""
    rng = np.random.default_rng(0)
    colours = rng.integers(40, 256, (16, 3))
    rows = {}
    for month, shown in MONTHS.items():
        (tmp_path / "photos" / month).mkdir(parents=True)
        for number in range(24 if month != "new" else 3):
            labels = {shown[number % len(shown)], *rng.choice(list(shown), 2)}
            pixels = np.full((64, 64, 3), rng.integers(0, 40), np.uint8)
            for label in labels:
                k = ord(label) - ord("a")
                pixels[16 * (k // 4) : 16 * (k // 4) + 16, 16 * (k % 4) : 16 * (k % 4) + 16] = colours[k]
            name = f"{month}/{number}.png"
            Image.fromarray(pixels).save(tmp_path / "photos" / name)
            rows.setdefault(month, []).append([name, ";".join(sorted(labels))])
    photos = [[*row, 1] for row in rows["april"]] + [[*row, 2] for row in rows["may"]]
    tables = {"photos": photos, "june": rows["june"], "check": rows["check"]}
    for name, table in tables.items():
        with open(tmp_path / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([["image", "labels", "task"][: len(table[0])], *table])
    return tmp_path


def test_the_commands_of_the_tutorial_and_the_program_of_its_export_run(tutorial, lifelabel):
    blocks = re.findall(r"^```(shell|python)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["shell"] * 8
    for _, text in blocks:
        words = shlex.split(text)
        assert words[0] == "lifelabel"
        more = SMALL if words[1] == "train" else []
        done = lifelabel(*words[1:], *more, cwd=tutorial)
        assert done.returncode == 0, (words, done.stderr)
        if words[1] == "predict":
            assert len(done.stdout.splitlines()) == 3
        if words[1] == "extend":
            assert "4 new classes, 16 in all; mAP of the new classes " in done.stdout
    folder, exif = tutorial / "exported", Image.Exif()
    exif[274] = 6  # it was taken with the camera turned
    Image.open(tutorial / "photos/new/0.png").rotate(90).save(folder / "photo.jpg", exif=exif, quality=95)
    code = (folder / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    done = command_server.run(code=code, cwd=folder, capture_output=True, text=True)
    found = {name: float(value) for value, name in (line.split(" ", 1) for line in done.stdout.splitlines())}
    expected = json.loads(lifelabel("predict", "runs/june", folder / "photo.jpg", "--json", cwd=tutorial).stdout)
    assert expected["labels"] and found == pytest.approx(expected["labels"], abs=2e-3), done.stderr
