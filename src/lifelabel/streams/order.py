"""The order in which a run learns the images of a task. In a pass each image occurs once."""

from __future__ import annotations

import numpy as np

from lifelabel.images.shards import ShardImages
from lifelabel.images.source import ImageSource

IMAGE_ORDERS = ("random", "shards")
"""The values of the option `image_order` of runs."""
_WINDOW = 10_000
"""With the order "shards", an image is moved by about this many places at most."""


def training_order(
    rows: np.ndarray, images: ImageSource, seed: int, task: int, how: str = "random", number: int = 0
) -> np.ndarray:
    """The order of the images `rows` in a pass over a task, as positions in `rows`. It depends on the arguments only.

    Pass `number` 0 is the first one.

    - `random`: a random permutation.
    - `shards`: the shards in random order, and the images of each shard in the order of the file. Then each image is
      moved by a random number of places, about 10,000 at most. So images are read from few shards at a time.
    """
    rng = np.random.default_rng([seed, task, *([number] if number else [])])
    if how == "random" or not isinstance(images, ShardImages):
        return rng.permutation(len(rows))
    rank = rng.permutation(len(images.shards) + 1)  # the last one is that of -1: images that are files
    sequence = np.lexsort((images.offset[rows], rank[images.shard[rows]]))
    half = _WINDOW / 2
    # the images at both ends are spread over a whole window: else the first batches would be of one shard
    centre = np.clip(np.arange(len(rows)), half, max(len(rows) - half, half))
    return sequence[np.argsort(centre + rng.uniform(-half, half, len(rows)), kind="stable")]


def order_places(images: ImageSource, how: str) -> bytes:
    """What `training_order` depends on besides the rows, the seed and the task: the places of images in shards."""
    if how == "random" or not isinstance(images, ShardImages):
        return b""
    return len(images.shards).to_bytes(8, "little") + images.shard.tobytes() + images.offset.tobytes()
