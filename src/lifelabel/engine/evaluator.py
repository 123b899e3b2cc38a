"""The evaluation after a task: every test image is scored here, and the label server turns the scores into metrics.

It also writes the folder `details` of a run: what a report shows besides the metrics. `task-N.npz` is written after
task N: the AP of each class, the number of pairs by probability, and the probabilities of some test images, the
examples. The last one has the precision over recall of each class too. `examples.npz` is written after the last task:
the names and labels of the examples, and small pictures of some of them.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lifelabel.engine.setup import Run
from lifelabel.engine.skipped import SkippedImages
from lifelabel.errors import NotFinite, UserError
from lifelabel.images.loader import CACHE_BYTES, Loader, TestImages
from lifelabel.methods import Method
from lifelabel.nn.cuda_graphs import without_cudnn
from lifelabel.nn.inference import InferenceNetwork
from lifelabel.runs import names
from lifelabel.runs.details import MAX_EXAMPLES
from lifelabel.runs.records import TaskRecord
from lifelabel.streams.stream import task_of_class
from lifelabel.utils.transfer import HostCopy, to_device

_COMPARED = 8
"""Test images on which the network of the model folder is compared with the method."""
_TOLERANCE = 0.05
"""The largest difference of probabilities between the network and the method. In bfloat16 it can be a few percent."""
_MIN_EXAMPLES = 24
_MAX_SCORES = 400_000
"""Probabilities of examples in one file: with many classes there are fewer examples."""
_SIDE, _QUALITY = 160, 70


class Evaluator:
    """Scores the test images of a run. In a group of processes, each one scores its own rows of them."""

    def __init__(self, run: Run, skipped: SkippedImages):
        self.run, self.skipped = run, skipped
        rows = run.info.test_rows
        self.images = TestImages(run.loader, rows[run.group.rows(len(rows))])
        self.kept_features: list[Tensor] | None = None
        self.val_images = None if run.info.val_rows is None else TestImages(run.loader, run.info.val_rows, "val")
        self.val_features: list[Tensor] | None = None

    def evaluate(self, done: int) -> TaskRecord:
        """The record of the metrics after `done` tasks.

        Raises `NotFinite` in every process if a score is not finite.
        """
        run, tasks = self.run, self.run.info.tasks
        features = self.features()
        rows, scores = self.rows(), self.scores(features)
        for task in tasks[:-1] if done == len(tasks) else ():
            run.label_server.submit_earlier(task.index, rows, self.scores(features, task.end))
        matrix = run.method.matrix() if run.info.has_truth else None
        return run.group.share(lambda: self.judge(done, rows, scores, matrix))

    def judge(self, done: int, rows: np.ndarray, scores: np.ndarray, matrix: np.ndarray | None) -> TaskRecord:
        """The record of the metrics. Writes the details, and the scores if they are wanted."""
        run, tasks = self.run, self.run.info.tasks
        record, details = run.label_server.judge(done, rows, scores, matrix)
        record["skipped"] = {"train": run.progress.skipped, "test": len(run.info.test_rows) - len(rows)}
        self.write_details(done, details, rows, scores)
        if done == len(tasks) and run.config.save_scores:
            labels, known, task_of_image = run.label_server.test_labels(rows)
            run.folder.write_arrays(names.SCORES, {
                "logits": np.where(known, scores, -np.inf), "labels": labels, "task_of_image": task_of_image,
                "task_of_class": task_of_class(tasks), "classes": np.array(run.info.classes),
            })  # fmt: skip
        return record

    def scores(self, features: list[Tensor], num_classes: int | None = None) -> np.ndarray:
        """The scores of all test images in the first process, those of its own images in another one."""
        own, error = np.zeros((0, 0)), ""
        try:
            with self.run.group.alone():
                own = compute_scores(self.run.method, features, num_classes)
        except NotFinite as found:
            error = str(found)
        for each in self.run.group.collect(error):
            if each:
                raise NotFinite(each)
        parts = self.run.group.to_first(own)
        return own if parts is None else np.concatenate([part for part in parts if len(part)])

    def rows(self) -> np.ndarray:
        """The test images that were scored, of all processes."""
        rows = np.concatenate(self.run.group.collect(self.images.rows))
        if not len(rows):
            raise UserError(f"no test image could be read: see {names.SKIPPED} in the run folder")
        return rows

    def write_details(self, done: int, details: dict[str, np.ndarray], rows: np.ndarray, scores: np.ndarray) -> None:
        """Write what a report shows besides the metrics. After the last task the labels of the examples are known."""
        tasks = len(self.run.info.tasks)
        examples = example_positions(len(rows), len(self.run.info.classes))
        probabilities = torch.from_numpy(scores[examples]).sigmoid().numpy()
        details = {**details, "scores": probabilities.astype(np.float16)}
        self.run.folder.write_arrays(f"{names.DETAILS}/{names.details_of_task(done)}", details)
        if done < tasks:
            return
        rows = rows[examples]
        labels, known, _ = self.run.label_server.test_labels(rows)
        chosen = choose_examples(probabilities, labels, known, self.run.config.pictures)
        pictures = load_pictures(self.run.loader, rows[chosen])
        chosen = chosen[np.isin(rows[chosen], list(pictures))]  # a file may have been removed
        self.run.folder.write_arrays(f"{names.DETAILS}/{names.EXAMPLES}", {
            "chosen": chosen, "labels": labels[chosen], "known": known[chosen],
            "names": np.array([self.run.info.test.name(row) for row in pictures], dtype=np.str_),
            "pictures": np.frombuffer(b"".join(pictures.values()), np.uint8),
            "picture_ends": np.cumsum([len(jpeg) for jpeg in pictures.values()], dtype=np.int64),
        })  # fmt: skip

    def features(self) -> list[Tensor]:
        """The features of the test images of this process.

        They are kept if later tasks do not change them, and if memory allows.
        """
        if self.kept_features is not None:
            return self.kept_features
        with self.run.group.alone():
            # several processes must agree to stop, and do so after the pass
            features = compute_features(self.run.method, self.images, self.run.stopping.check)
        for row, reason in itertools.chain(*self.run.group.collect(self.images.bad)):
            self.skipped.add("test", row, reason)
        self.run.stopping.agree()
        fits = sum(part.nbytes for part in features) <= CACHE_BYTES
        if self.run.method.fixed_features and all(self.run.group.collect(fits)):
            self.kept_features, self.images.cached = features, []
        return features

    def validate(self, task: int) -> None:
        """Let the method choose an option by the validation images, in each process by all of them."""
        if self.val_images is None or not self.run.method.validates:
            return
        features = self.val_features
        if features is None:
            with self.run.group.alone():
                features = compute_features(self.run.method, self.val_images, self.run.stopping.check)
            if self.run.method.fixed_features and sum(part.nbytes for part in features) <= CACHE_BYTES:
                self.val_features, self.val_images.cached = features, []
        if len(self.val_images.rows):
            found = self.run.label_server.val_labels(task, self.val_images.rows)
            labels, known = (torch.from_numpy(array).to(self.run.method.setting.device) for array in found)
            self.run.method.validate(torch.cat(features).to(labels.device), labels.float(), known)

    def usable_network(self) -> InferenceNetwork | None:
        """The network of the method for use after training; None if it has none that gives its scores."""
        network = self.run.method.network()
        jobs = self.run.loader.scoring_jobs("test", self.images.rows[:_COMPARED])  # of the first process
        compared = (
            each.pixels for each in self.run.loader.batches(jobs) if len(each.good)
        )  # a file may have been removed
        if network is None or not all(_agrees(network, self.run.method, pixels) for pixels in compared):
            return None
        return network


def example_positions(images: int, classes: int) -> np.ndarray:
    """The positions of the examples among the test images: spread evenly, the same for all methods on a stream.

    >>> example_positions(5, 20).tolist(), len(example_positions(10_000, 80)), len(example_positions(10_000, 10_000))
    ([0, 1, 2, 3, 4], 256, 40)
    """
    count = max(_MIN_EXAMPLES, min(MAX_EXAMPLES, _MAX_SCORES // classes))
    return np.unique(np.linspace(0, images - 1, min(count, images)).round().astype(np.int64))


def choose_examples(probabilities: np.ndarray, labels: np.ndarray, known: np.ndarray, count: int) -> np.ndarray:
    """The rows of `count` images, the most confident mistakes first.

    In turn these are the image with the most probable wrong label, that with the least probable label that it has, and
    that whose labels are all the most probable.
    """
    wrong = np.where(known & ~labels, probabilities, 0).max(1, initial=0)
    missed = np.where(known & labels, 1 - probabilities, 0).max(1, initial=0)
    mistake = np.maximum(wrong, missed)
    orders = [np.argsort(-values, kind="stable").tolist() for values in (wrong, missed, -mistake)]
    chosen = list(dict.fromkeys(row for turn in zip(*orders, strict=True) for row in turn))[:count]
    return np.array(sorted(chosen, key=lambda row: -mistake[row]), np.int64)


def load_pictures(loader: Loader, rows: np.ndarray) -> dict[int, bytes]:
    """Small pictures of the test images `rows`, by row. A file that has been removed has none."""
    jobs = list(loader.scoring_jobs("test", rows))
    return {
        int(row): picture(pixels)
        for job, loaded in zip(jobs, loader.batches(jobs), strict=True)
        for row, pixels in zip(job.rows[loaded.good], loaded.pixels, strict=True)
    }


def picture(pixels: Tensor) -> bytes:
    """A small JPEG of the pixels of an image, as the model sees it."""
    image = Image.fromarray(pixels.numpy())
    image.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY, optimize=True)
    return file.getvalue()


@torch.no_grad()
def compute_features(method: Method, batches: Iterable[Tensor], check_stop: Callable[[], None]) -> list[Tensor]:
    """The features of all images in `batches` (uint8 pixels), on the host. Each image runs through the network once."""
    features: list[Tensor] = []
    pending: HostCopy | None = None
    largest = 0
    for pixels in batches:
        check_stop()
        largest = max(largest, len(pixels))
        with without_cudnn(len(pixels) < largest):
            copy = HostCopy(method.features(method.setting.backbone.normalize(pixels)))
        if pending is not None:  # it arrives while the device works on the next batch
            features.append(pending.wait().clone())  # into memory that is not pinned
        pending = copy
    return features if pending is None else [*features, pending.wait().clone()]


@torch.no_grad()
def compute_scores(method: Method, features: Iterable[Tensor], num_classes: int | None = None) -> np.ndarray:
    """The logits of all images from their features: for all seen classes, or for the first `num_classes`."""
    device = method.setting.device
    parts = [method.logits(to_device(part, device), num_classes).cpu() for part in features]
    if not parts:  # a process of several may have no image
        return np.zeros((0, num_classes or sum(method.sizes)), np.float32)
    scores = torch.cat(parts)
    if not bool(scores.isfinite().all()):
        raise NotFinite("the scores of the test images are not finite")
    return scores.numpy()


@torch.no_grad()
def _agrees(network: InferenceNetwork, method: Method, pixels: Tensor) -> bool:
    """Whether the network gives the scores of the method. That of a plug-in may be inherited and not fit."""
    images = method.setting.backbone.normalize(pixels)
    with method.setting.autocast():
        found = network.eval()(images).float().sigmoid()
    return bool((found - method.scores(images).sigmoid()).abs().max() <= _TOLERANCE)
