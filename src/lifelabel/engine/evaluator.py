"""The evaluation after a task: every test image is scored here, and the label server turns the scores into metrics."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lifelabel.config.config import Config
from lifelabel.engine.examples import choose_examples, example_positions, load_pictures, pictures_to_arrays
from lifelabel.engine.label_server import LabelServer
from lifelabel.engine.model_description import agrees
from lifelabel.engine.scoring import compute_features, compute_scores
from lifelabel.errors import UserError
from lifelabel.images.loader import CACHE_BYTES, Loader, TestImages
from lifelabel.methods import Method
from lifelabel.nn.inference import InferenceNetwork
from lifelabel.parallel.group import Group
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder
from lifelabel.streams.stream import task_of_class

__all__ = ["Evaluator"]

_COMPARED = 8
"""Test images on which the network of the model folder is compared with the method."""


class Evaluator:
    """Scores the test images of a run. In a group of processes, each one scores its own rows of them.

    `skip_image` is called with the split, the row and the reason of each test image that cannot be read. `check_stop`
    is called before each batch, and `agree_to_stop` after the last one, in all processes.
    """

    def __init__(
        self, config: Config, folder: RunFolder, group: Group, method: Method, label_server: LabelServer,
        loader: Loader, skip_image: Callable[[str, int, str], None], check_stop: Callable[[], None],
        agree_to_stop: Callable[[], None],
    ):  # fmt: skip
        self.config, self.folder, self.group, self.method = config, folder, group, method
        self.label_server, self.info, self.loader = label_server, label_server.info, loader
        self.skip_image, self.check_stop, self.agree_to_stop = skip_image, check_stop, agree_to_stop
        rows = self.info.test_rows
        self.images = TestImages(loader, rows[group.rows(len(rows))])
        self.kept_features: list[Tensor] | None = None
        self.val_images = None if self.info.val_rows is None else TestImages(loader, self.info.val_rows, "val")
        self.val_features: list[Tensor] | None = None

    def evaluate(self, done: int, skipped: int) -> dict[str, Any]:
        """The record of the metrics after `done` tasks. `skipped` training images of the last one were not learned.

        Raises `FloatingPointError` in every process if a score is not finite.
        """
        tasks = self.info.tasks
        features = self.features()
        rows, scores = self.rows(), self.scores(features)
        for task in tasks[:-1] if done == len(tasks) else ():
            self.label_server.submit_earlier(task.index, rows, self.scores(features, task.end))
        matrix = self.method.matrix() if self.info.has_truth else None
        return self.group.share(lambda: self.judge(done, rows, scores, matrix, skipped))

    def judge(
        self, done: int, rows: np.ndarray, scores: np.ndarray, matrix: np.ndarray | None, skipped: int
    ) -> dict[str, Any]:
        """The record of the metrics. Writes the details, and the scores if they are wanted."""
        tasks = self.info.tasks
        record, details = self.label_server.judge(done, rows, scores, matrix)
        record["skipped"] = {"train": skipped, "test": len(self.info.test_rows) - len(rows)}
        self.write_details(done, details, rows, scores)
        if done == len(tasks) and self.config.save_scores:
            labels, known, task_of_image = self.label_server.test_labels(rows)
            self.folder.write_arrays(names.SCORES, {
                "logits": np.where(known, scores, -np.inf), "labels": labels, "task_of_image": task_of_image,
                "task_of_class": task_of_class(tasks), "classes": np.array(self.info.classes),
            })  # fmt: skip
        return record

    def scores(self, features: list[Tensor], num_classes: int | None = None) -> np.ndarray:
        """The scores of all test images in the first process, those of its own images in another one."""
        own, error = np.zeros((0, 0)), ""
        try:
            with self.group.alone():
                own = compute_scores(self.method, features, num_classes)
        except FloatingPointError as found:
            error = str(found)
        for each in self.group.collect(error):
            if each:
                raise FloatingPointError(each)
        parts = self.group.to_first(own)
        return own if parts is None else np.concatenate([part for part in parts if len(part)])

    def rows(self) -> np.ndarray:
        """The test images that were scored, of all processes."""
        rows = np.concatenate(self.group.collect(self.images.rows))
        if not len(rows):
            raise UserError(f"no test image could be read: see {names.SKIPPED} in the run folder")
        return rows

    def write_details(self, done: int, details: dict[str, np.ndarray], rows: np.ndarray, scores: np.ndarray) -> None:
        """Write what a report shows besides the metrics. After the last task the labels of the examples are known."""
        tasks = len(self.info.tasks)
        examples = example_positions(len(rows), len(self.info.classes))
        probabilities = torch.from_numpy(scores[examples]).sigmoid().numpy()
        details = {**details, "scores": probabilities.astype(np.float16)}
        self.folder.write_arrays(f"{names.DETAILS}/{names.details_of_task(done)}", details)
        if done < tasks:
            return
        rows = rows[examples]
        labels, known, _ = self.label_server.test_labels(rows)
        chosen = choose_examples(probabilities, labels, known, self.config.pictures)
        pictures = load_pictures(self.loader, rows[chosen])
        chosen = chosen[np.isin(rows[chosen], list(pictures))]  # a file may have vanished
        self.folder.write_arrays(f"{names.DETAILS}/{names.EXAMPLES}", {
            "chosen": chosen, "labels": labels[chosen], "known": known[chosen],
            "names": np.array([self.info.test.name(row) for row in pictures], dtype=np.str_),
            **pictures_to_arrays(pictures.values()),
        })  # fmt: skip

    def features(self) -> list[Tensor]:
        """The features of the test images of this process.

        They are kept if they do not change any more, and if memory allows.
        """
        if self.kept_features is not None:
            return self.kept_features
        with self.group.alone():
            # several processes must agree to stop, and do so after the pass
            features = compute_features(self.method, self.images, self.check_stop)
        for row, reason in itertools.chain(*self.group.collect(self.images.bad)):
            self.skip_image("test", row, reason)
        self.agree_to_stop()
        fits = sum(part.nbytes for part in features) <= CACHE_BYTES
        if self.method.fixed_features and all(self.group.collect(fits)):
            self.kept_features, self.images.cached = features, []
        return features

    def validate(self, task: int) -> None:
        """Let the method choose an option by the validation images, in each process by all of them."""
        if self.val_images is None or not self.method.validates:
            return
        features = self.val_features
        if features is None:
            with self.group.alone():
                features = compute_features(self.method, self.val_images, self.check_stop)
            if self.method.fixed_features and sum(part.nbytes for part in features) <= CACHE_BYTES:
                self.val_features, self.val_images.cached = features, []
        if len(self.val_images.rows):
            found = self.label_server.val_labels(task, self.val_images.rows)
            labels, known = (torch.from_numpy(array).to(self.method.setting.device) for array in found)
            self.method.validate(torch.cat(features).to(labels.device), labels.float(), known)

    def usable_network(self) -> InferenceNetwork | None:
        """The network of the method for use after training; None if it has none that gives its scores."""
        network = self.method.network()
        jobs = self.loader.scoring_jobs("test", self.images.rows[:_COMPARED])  # of the first process
        compared = (each.pixels for each in self.loader.batches(jobs) if len(each.good))  # a file may have vanished
        if network is None or not all(agrees(network, self.method, pixels) for pixels in compared):
            return None
        return network
