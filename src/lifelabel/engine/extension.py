"""Extend a finished run by new classes, from new photographs. No old image is used."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lifelabel.config.config import Config, merge, nest_flags
from lifelabel.engine.callback import Callback
from lifelabel.engine.checkpoint_file import load_checkpoint
from lifelabel.engine.progress import Progress
from lifelabel.engine.run import Result, train_into
from lifelabel.engine.setup import Run, learns_jointly
from lifelabel.errors import UserError
from lifelabel.model.model_folder import read_info
from lifelabel.options import declared
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder
from lifelabel.streams import resolve


def extend(
    run: str | Path, table: str | Path, out: str | Path, options: Mapping[str, Any] | None = None, *,
    overwrite: bool = False, callback: Callback | None = None, **flags: Any,
) -> Result:  # fmt: skip
    """Continue a finished run with the new classes of a table, into the new run folder `out`.

    The classes of `table` that the run does not know are new. They form one task, unless the table has a column `task`
    or `tasks` is given. Labels of old classes count if the table names them. The method and its options are those of
    the run; keywords have the names of flags, such as `root=` or `device=`. The result can be extended again.

    Two tasks and then an extension give the same bits as three tasks in one stream, on the CPU.
    """
    old = RunFolder(run)
    if not old.is_run:
        hint = f": give its run folder, which has {names.CHECKPOINT}" if (old / names.MODEL_INFO).exists() else ""
        raise UserError(f"{old.path} is not a run folder{hint}")
    if not old.is_finished:
        raise UserError(f"{old.path} is not finished: continue it with `lifelabel train --resume {old.path}` first")
    callback = callback or Callback()
    state = load_checkpoint(old, callback.note)
    if state is None:
        raise UserError(f"{old.path} has no {names.CHECKPOINT}, which is needed to extend it")
    _check_end(old, state)
    config = _configure(old, state, str(table), merge(options or {}, nest_flags(flags)))
    if Path(out).resolve() == old.path.resolve():
        raise UserError(f"--out {out} is the run itself: choose another folder")
    return train_into(out, config, overwrite, callback, functools.partial(_starting_state, old, state))


def _check_end(old: RunFolder, state: Mapping[str, Any]) -> None:
    """Refuse a checkpoint from before the end of the run: the last one is damaged, and the one before it was loaded."""
    tasks = len(old.read_json(names.METRICS)["tasks"])
    try:
        records, _ = Progress.from_dict(state).records, (state["stream"], state["weights"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{old / names.CHECKPOINT} is not the checkpoint of a run: {error}") from None
    if not records or records[-1]["task"] != tasks:
        raise UserError(
            f"the checkpoint of the end of {old.path} is damaged or missing: delete {old / names.METRICS}, continue "
            f"with `lifelabel train --resume {old.path}` from the one before it, and extend then"
        )


def _configure(old: RunFolder, state: Mapping[str, Any], table: str, given: Mapping[str, Any]) -> Config:
    """The configuration of the new run: that of the old one, on the table."""
    before = Config.make(old.read_config())
    stream, of_table = resolve(table, given.get("stream_options") or {})
    if stream != "table":
        raise UserError(f"{table} is not a table: give a .csv, .tsv or .parquet file of images and labels")
    if "learned" in of_table:
        raise UserError("stream.learned is set by the run that is extended: remove it")
    of_run = old.read_json(names.METRICS)
    tasks, titles = of_run["tasks"], of_run.get("task_names") or []
    if learns_jointly(before):
        tasks, titles = [[name for task in tasks for name in task]], []  # it learned all tasks as one
    named = [{titles[index]: task} if titles and titles[index] else task for index, task in enumerate(tasks)]
    of_table["learned"] = [json.dumps(task, ensure_ascii=False) for task in named]
    whole = {"first_tasks": None, "hold_out": 0.0, "task_order": 0, "class_order": 0, "proxy": False}
    whole |= {"proxy_images": None, "epochs": 1}  # a table is an online stream, unless its protocol is overlap
    stored = {"image_order": "random"}  # it depends on how the new images are stored
    size = {"image_size": state.get("image_size") or before.image_size}
    own = {name: value for name, value in before.to_dict().items() if name != "stream_options"}
    shared = {name: value for name, value in given.items() if name != "stream_options"}
    fixed = [f"method.{name}" for name in shared.pop("method_options", {})]
    free = (*declared(Config, "resume"), *declared(Config, "path"), "image_order", "epochs")
    fixed += [name for name in shared if name not in free]
    if fixed:
        raise UserError(
            f"{fixed[0]} cannot change when a run is extended: {old.path} was trained with its own; remove it"
        )
    return Config.make(merge(own, whole, stored, size, shared, {"stream": stream, "stream_options": of_table}))


def _is_calibrated(run: RunFolder) -> bool:
    if not (run / names.MODEL / names.MODEL_INFO).exists():
        return False
    info = read_info(run / names.MODEL)
    return bool(info.calibration or info.thresholds)


def _starting_state(old: RunFolder, state: Mapping[str, Any], new: Run) -> dict[str, Any]:
    """The checkpoint with which the new run starts: the method as the old run left it, before the new tasks.

    The first step of the new run is to evaluate the old classes, so its position is the last task of the old run.
    """
    if state["weights"] != new.made_from["weights"]:
        raise UserError(f"the initial weights of {old.path} are not those of {new.config.weights}: give the same file")
    if _is_calibrated(old):
        new.callback.note(f"the calibration of {old.path} is not kept: run `lifelabel calibrate` on the new run")
    images = old.read_json(names.ENVIRONMENT).get("images_by_task")
    if images and new.info.learned == 1:
        images = [sum(images)]  # an upper bound learned all tasks as one
    extends = {"run": str(old.path), "stream": state["stream"], "images": images or [None] * new.info.learned}
    progress = Progress(
        task=new.info.learned - 1, changed_options=Progress.from_dict(state).changed_options, extends=extends
    )
    return {
        **state, **new.made_from, **progress.to_dict(), "config": new.config.to_dict(),
        "history_bytes": 0, "skipped_bytes": 0, "history_sha256": None, "skipped_sha256": None,
        "digests": {},
    }  # fmt: skip
