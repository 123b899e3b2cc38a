"""What the paper and its authors' files fix: the classes of each task, and the table "Dataset construction" (A.2).

The published files carry no class names. Split-COCO's follow from COCO's own labels of the same images; Split-WIDE's
fit NUS-WIDE's 21 most frequent concepts by their co-occurrence, and can be checked where a user has the ground truth.
"""

from __future__ import annotations

SPLIT_COCO = (
    ("person", "bicycle", "car", "motorcycle"),
    ("airplane", "bus", "train", "truck"),
    ("traffic light", "bench", "bird", "cat"),
    ("dog", "backpack", "umbrella", "handbag"),
    ("tie", "sports ball", "skateboard", "surfboard"),
    ("tennis racket", "bottle", "cup", "fork"),
    ("knife", "spoon", "bowl", "chair"),
    ("couch", "potted plant", "bed", "dining table"),
    ("toilet", "tv", "laptop", "cell phone"),
    ("sink", "book", "clock", "vase"),
)
SPLIT_WIDE = (
    ("mountain", "ocean", "person"),
    ("plants", "reflection", "road"),
    ("rocks", "sky", "snow"),
    ("sunset", "tree", "vehicle"),
    ("water", "window", "animal"),
    ("beach", "buildings", "clouds"),
    ("flowers", "grass", "lake"),
)
TASKS = {"coco": SPLIT_COCO, "nus-wide": SPLIT_WIDE}
"""The paper's tasks by data set."""

SPECIAL_AND_MIXED = {
    "coco": (
        (8511, 3101), (2772, 3528), (2720, 3508), (799, 5320), (150, 6111),
        (603, 5500), (901, 5234), (1001, 5161), (1198, 4803), (1947, 2214),
    ),
    "nus-wide": (
        (22927, 10067), (3627, 17012), (7727, 12996), (1154, 7095), (14599, 10111), (4936, 18995), (4546, 9066),
    ),
}  # fmt: skip
"""Training images of each task with labels of that task alone, and with others of the stream too, as printed."""
