"""The photographs and tables of docs/tutorial.md, taken from COCO.

    python -m benchmarks.tutorial --root DIR --out tutorial

DIR is a folder of COCO (photographs and annotations/instances_*.json). Into the new folder `tutorial` it writes

photos.csv   photographs of April and May, labelled with 6 classes in April, and with 12 in May
june.csv     photographs of June, labelled with all 16 classes: 4 are new
check.csv    other photographs with all 16 labels, to evaluate and to calibrate
photos/      the photographs, in a folder for each table, and some without labels in photos/new
"""

from __future__ import annotations

import argparse
import csv
import shutil
from pathlib import Path

import numpy as np

from lifelabel.images.photographs import FileImages
from lifelabel.images.source import Names
from lifelabel.streams import coco

APRIL = ("person", "car", "dog", "chair", "cup", "tv")
MAY = ("cat", "bicycle", "bench", "laptop", "couch", "book")
JUNE = ("bus", "train", "umbrella", "clock")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=300, help="photographs of each month")
    given = parser.parse_args()
    found = coco.read(given.root)
    source = Photographs(given.root, found.train.names, found.train.labels.dense(), found.classes)
    given.out.mkdir(parents=True)
    tables: dict[str, list[tuple[str, tuple[str, ...], tuple[str, ...]]]] = {
        "photos": [("april", APRIL, APRIL), ("may", MAY, APRIL + MAY)],
        "june": [("june", JUNE, APRIL + MAY + JUNE)],
        "check": [("check", APRIL + MAY + JUNE, APRIL + MAY + JUNE)],
    }
    for table, parts in tables.items():
        with open(given.out / f"{table}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["image", "labels", *(["task"] if len(parts) > 1 else [])])
            for number, (folder, shown, labels) in enumerate(parts, start=1):
                for row in source.take(shown, given.images):
                    name = source.copy(row, given.out / "photos", folder)
                    cells = [name, ";".join(label for label in labels if source.shows(row, label))]
                    writer.writerow([*cells, *([number] if len(parts) > 1 else [])])
    for row in source.take(APRIL + MAY + JUNE, 12):
        source.copy(row, given.out / "photos", "new")
    print(f"written to {given.out}: {', '.join(f'{name}.csv' for name in tables)}, photos/")


class Photographs:
    """Photographs with complete labels. Each is taken once."""

    def __init__(self, root: Path, names: Names, labels: np.ndarray, classes: tuple[str, ...]):
        self.images, self.labels, self.classes = FileImages(root, names), labels, classes
        self.left = np.random.default_rng(0).permutation(np.flatnonzero(self.images.present)).tolist()

    def shows(self, row: int, label: str) -> bool:
        return bool(self.labels[row, self.classes.index(label)])

    def take(self, shown: tuple[str, ...], count: int) -> list[int]:
        """Photographs that show one of the classes, about as many for each of them."""
        taken: list[int] = []
        for number in range(count):
            label = shown[number % len(shown)]
            taken.append(next(row for row in self.left if self.shows(row, label)))
            self.left.remove(taken[-1])
        return taken

    def copy(self, row: int, folder: Path, name: str) -> str:
        """Copy a photograph to a folder. Returns its name in the table."""
        path = Path(str(self.images.root), self.images.found[row])
        (folder / name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name / path.name)
        return f"{name}/{path.name}"


if __name__ == "__main__":
    main()
