"""Streams small enough to count by hand, and the text of their descriptions."""

import io

import numpy as np
from PIL import Image
from rich.console import Console

from lifelabel.images.source import BadImage, Names
from lifelabel.report.stream_text import terminal
from lifelabel.streams.labels import Labels
from lifelabel.streams.stream import Split

CLASSES = ("cat", "dog", "cup", "fork")


class Photographs:
    """Plain images whose red is their row number. Those in `broken` cannot be read."""

    drawn_from_labels = False

    def __init__(self, count, absent=(), broken=()):
        self.present = np.ones(count, bool)
        self.present[list(absent)] = False
        self.broken = frozenset(broken)

    def __len__(self):
        return len(self.present)

    def name(self, row):
        return f"photo-{row}.jpg"

    def read(self, row, min_side=0):
        assert self.present[row]
        if row in self.broken:
            raise BadImage("cut short" if row % 2 else "not an image")
        return Image.new("RGB", (80, 60), (row, 0, 200))


def split(lists, rows, complete=True, names=None, **images):
    names = Names(names or (f"photo-{row}.jpg" for row in range(len(lists))))
    rows = tuple(np.array(r, np.int64) for r in rows)
    return Split(Photographs(len(lists), **images), names, Labels.from_lists(lists, len(CLASSES)), rows, complete)


def printed(description, width=100):
    console = Console(width=width, file=io.StringIO())
    console.print(terminal(description), highlight=False)
    return console.file.getvalue()
