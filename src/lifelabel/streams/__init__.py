"""Streams: the classes, images and labels of each task, and how image files are read."""

from lifelabel.images.source import BadImage, ImageSource, Names, Problems
from lifelabel.streams.collection import Collection, Pool
from lifelabel.streams.labels import Labels
from lifelabel.streams.named_streams import STREAMS, Source, build, is_overlapping, resolve
from lifelabel.streams.protocols import ProtocolOptions, make_stream
from lifelabel.streams.stream import Split, Stream, Task, TrainView

__all__ = [
    "STREAMS", "BadImage", "Collection", "ImageSource", "Labels", "Names", "Pool", "Problems", "ProtocolOptions",
    "Source", "Split", "Stream", "Task", "TrainView", "build", "is_overlapping", "make_stream", "resolve",
]  # fmt: skip
