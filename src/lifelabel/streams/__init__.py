"""Streams: the classes, images and labels of each task, and how image files are read."""

from lifelabel.streams.base import BadImage, ImageSource, Names, Problems, Split, Stream, Task, TrainView
from lifelabel.streams.labels import Labels
from lifelabel.streams.sources import STREAMS, Source, build, resolve

__all__ = [
    "STREAMS", "BadImage", "ImageSource", "Labels", "Names", "Problems", "Source", "Split", "Stream", "Task",
    "TrainView", "build", "resolve",
]  # fmt: skip
