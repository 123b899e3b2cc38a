"""Run folders with everything that a report shows, written by hand. All of their text is hostile."""

import io

import numpy as np
from PIL import Image
from report.run_folders import forgetting, make_run, scores

from lifelabel.report.tables import ResultTable

RLO = "\N{RIGHT-TO-LEFT OVERRIDE}"
HOSTILE = ["<script>alert(1)</script>", "</script><img src=x onerror=alert(2)>", "{{7*7}}", f"$5_to_$10{RLO}"]
"""Class names, two of each task."""
TASKS = [HOSTILE[:2], HOSTILE[2:]]
STREAM = "<b>scenes</b> & {{ self }} ${alert(3)}"
LABELS = {
    "multi-task": "multi-task <i>",
    "fine-tuning": "fine-tuning </script><script>alert(4)</script>",
    "agcn": "agcn \"' onload=alert(5) `",
}
FILE = "<svg onload=alert(6)>.jpg"


def shown(text):
    """Text as a page shows it."""
    return text.replace(RLO, "\N{REPLACEMENT CHARACTER}")


def jpeg(colour):
    file = io.BytesIO()
    Image.new("RGB", (24, 16), colour).save(file, "JPEG")
    return file.getvalue()


PROBABILITIES = {
    1: np.array([[0.9, 0.2], [0.6, 0.1], [0.1, 0.8]]),
    2: np.array([[0.95, 0.1, 0.3, 0.72], [0.4, 0.75, 0.9, 0.1], [0.1, 0.8, 0.2, 0.699]]),
}
LABELS_OF_IMAGES = np.array([[1, 0, 1, 0], [1, 0, 1, 0], [0, 1, 0, 0]], bool)


PICTURES = (jpeg("red"), jpeg("blue"), b"not a picture")


def write_details(folder, tasks=(1, 2), pictures=PICTURES, known=None):
    """The details of a run on three test images. The last file is not a JPEG. `known`: of each image and class."""
    details = folder / "details"
    details.mkdir()
    rng = np.random.default_rng(0)
    for task in tasks:
        arrays = {
            "ap": np.linspace(0.4, 0.9, 2 * task).astype(np.float32),
            "counts": rng.integers(0, 9, (task, 2, 100)),
            "scores": PROBABILITIES[task].astype(np.float16),
        }
        if task == 2:
            recall = np.linspace(0, 1, 101, dtype=np.float32)
            arrays["precision"] = np.stack([recall * 0 + 0.5, np.full(101, np.nan, np.float32), recall * 0, 1 - recall])
            arrays["thresholds"] = np.where(np.isnan(arrays["precision"]), np.float32(np.nan), 1 - recall)
        np.savez(details / f"task-{task}.npz", **arrays)
    np.savez(
        details / "examples.npz", chosen=np.arange(3), names=np.array([FILE, "b.jpg", "c.jpg"]),
        labels=LABELS_OF_IMAGES, known=np.ones((3, 4), bool) if known is None else known,
        pictures=np.frombuffer(b"".join(pictures), np.uint8), picture_ends=np.cumsum([len(each) for each in pictures]),
    )  # fmt: skip


def write_matrix(folder):
    last = np.array([[1, 0.9, 0.2, 0.3], [0.5, 1, 0.6, 0.1], [0.4, 0.7, 1, 0.8], [0.3, 0.2, 0.1, 1]])
    np.savez(folder / "acm.npz", task_1=last[:2, :2], task_2=last, classes=np.array(HOSTILE), truth=last.T)


def make_table(folder, details=True):
    """Three methods, AGCN with two seeds and a matrix."""
    runs = []
    for method, seed in (("multi-task", 0), ("fine-tuning", 0), ("agcn", 0), ("agcn", 1)):
        joint = method == "multi-task"
        path = folder / f"{method}-s{seed}"
        final = {} if joint else forgetting(0.1)
        if method == "agcn":
            final["acm_error"] = {"all": 0.1, "intra": 0.2, "old_new": 0.3, "new_old": 0.4}
        mAP = {"multi-task": 0.9, "fine-tuning": 0.4, "agcn": 0.6}[method] + seed / 100
        more = {"classes": HOSTILE, "tasks": TASKS, "stream": STREAM}
        if not joint:
            more["by_task"] = {
                name: [[scores(0.8)[name], None], [scores(0.25)[name], scores(0.75)[name]]] for name in scores(1)
            }
        run = make_run(
            path, method, seed=seed, mAP=mAP, joint=joint, stored=(0, 10**6 * (method == "agcn")), more=more,
            environment={"label": LABELS[method]}, ap=dict(zip(HOSTILE, (0.9, 0.8, None, 0.3), strict=True)), **final,
        )  # fmt: skip
        if details:
            write_details(path, (2,) if joint else (1, 2))
        if method == "agcn":
            write_matrix(path)
        runs.append(run)
    return ResultTable.from_runs(runs)
