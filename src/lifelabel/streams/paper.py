"""Constants of the paper and its published files: the classes of each task, and the table "Dataset construction" (A.2).

The published files contain no class names. The names of Split-COCO follow from COCO's labels of the same images. The
names of Split-WIDE are the 21 most frequent concepts of NUS-WIDE, matched by their co-occurrence; the ground truth of
NUS-WIDE can confirm them.
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
"""For each task, as printed: training images with labels of that task only, and with labels of other tasks too."""
