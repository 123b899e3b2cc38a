"""A process that is lost under torchrun: torchrun starts all of them again, and the run finishes by itself."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest


def test_a_lost_process_is_replaced(tmp_path, pytestconfig, count):
    if pytestconfig.getoption("faults") != "full":
        pytest.skip("torchrun and its processes import torch five times: only with --faults full")
    folder = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    small = ["--set", "stream.train_images=100", "--set", "stream.test_images=40", "--device", "cpu", "--quiet"]
    process = subprocess.Popen(
        [*torchrun, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "lifelabel", "train", *small,
         "--checkpoint-seconds", "0", "--out", folder],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    while not (folder / "checkpoint.pt").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    worker = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()[-1]
    os.kill(int(worker), signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [(line["task"], line["step"]) for line in lines]
    assert steps == sorted(set(steps))  # no step was learned twice
    assert json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["finished"]
    count(processes_lost_under_torchrun=1)
