"""Runs of several processes under torchrun against one process: what differs in the result, and the speed.

Every method is trained with 1, 2 and 3 processes (gloo) on scenes, `--jobs` methods at the same time. The table has the
mAP with one process, the differences of the others, and the largest difference of the label counts of the ACM. With the
closed forms, `method.warm_up=0` leaves out the warm-up of the backbone by gradient.

Training in float32 is chaotic: a difference in the last bit of one weight grows to that of another seed in some hundred
steps. `--threads` adds a column with two threads in place of one, in one process, which changes the order of additions
too. With `--float64` all networks compute in float64, where rounding errors stay small: this shows whether anything
else depends on the number of processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import Results, make_parser
from lifelabel.engine.checkpoint_file import load_checkpoint
from lifelabel.methods import METHODS
from lifelabel.runs.folder import RunFolder

_CLOSED_FORM = ("l3a", "weighted-ridge")
_FLOAT64 = "LIFELABEL_BENCHMARK_FLOAT64"


def _train(folder: Path, processes: int, options: list[str], threads: int = 1) -> dict[str, Any]:
    module = "benchmarks.float64" if _FLOAT64 in os.environ else "lifelabel"
    torchrun = ["torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--nproc-per-node"]
    launcher = [*torchrun, str(processes), "-m"] if processes > 1 else []
    words = [sys.executable, "-m", *launcher, module, "train", *options, "--quiet", "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(options)}, {processes} processes: {done.stdout}")
    state = load_checkpoint(RunFolder(folder)) or {}
    acm = state["method"].get("acm")
    seconds = json.loads((folder / "environment.json").read_text())["seconds"]
    metrics = json.loads((folder / "metrics.json").read_text())
    return {"mAP": 100 * metrics["final"]["mAP"], "counts": None if acm is None else acm["n_ij"], "seconds": seconds}


def _compare(method: str, counts: list[int], options: list[str], folder: Path, threads: bool) -> dict[str, Any]:
    own = ["--method", method, *options]
    if method in _CLOSED_FORM:
        own += ["--set", "method.warm_up=0"]
    found = {count: _train(folder / f"{method}-{count}", count, own) for count in counts}
    one = found[1]
    row: dict[str, Any] = {"mAP": one["mAP"]}
    for count in counts[1:]:
        row[f"change of mAP, {count}"] = found[count]["mAP"] - one["mAP"]
        if one["counts"] is not None:
            difference = (found[count]["counts"] - one["counts"]).abs().max()
            row[f"change of counts, {count}"] = float(difference)
        row[f"speed, {count}"] = one["seconds"] / found[count]["seconds"]
    if threads:
        row["change of mAP, two threads"] = _train(folder / f"{method}-threads", 1, own, 2)["mAP"] - one["mAP"]
    return row


def main() -> None:
    flags = {"methods": ",".join(METHODS), "jobs": 1, "threads": False, "float64": False}
    parser = make_parser(__doc__, **flags)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", action="append", default=[], help="options of all runs, as for train")
    given = parser.parse_args()
    if given.float64:
        os.environ[_FLOAT64] = "1"
    results = Results(given, "method", "scenes", "float64" if given.float64 else "float32")
    options = [word for each in given.set for word in ("--set", each)] + ["--device", given.device]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(given.jobs) as pool:
        methods = given.methods.split(",")
        compared = pool.map(lambda m: _compare(m, given.processes, options, Path(name), given.threads), methods)
        for method, row in zip(methods, compared, strict=True):
            results.add(method, row)


if __name__ == "__main__":
    main()
