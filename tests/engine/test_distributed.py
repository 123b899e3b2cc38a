"""Runs of several processes, as torchrun starts them, against runs of one process."""

import json
import os
import signal
import time

import pytest
from support import command_server, torchrun

from lifelabel.engine.checkpoint_file import load_checkpoint
from lifelabel.runs.folder import RunFolder

SIZES = ("--set", "stream.train_images=30", "--set", "stream.test_images=40", "--tasks", 2)
"""Two tasks of 15 images, in batches of 8 and 7: neither two nor three processes have equal shares."""
SMALL = (*SIZES, "--device", "cpu", "--quiet")


def train(processes, folder, *options):
    codes, outputs = torchrun.run(processes, "train", *SMALL, *options, "--out", folder)
    assert codes == [0] * processes, outputs
    return outputs


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of the run of one process, by method."""
    folders = {}

    def run(method):
        if method not in folders:
            folder = folders[method] = tmp_path_factory.mktemp("alone") / "run"
            done = command_server.run("train", *SMALL, "--method", method, *options(method), "--out", folder)
            assert done.returncode == 0
        return folders[method]

    return run


def options(method):
    # without a warm-up by gradient a closed form has no source of a difference but the order of additions
    small = ("--set", "method.warm_up=0", "--set", "method.directions=64")
    return small if method == "weighted-ridge" else ()


@pytest.mark.parametrize(("method", "processes"), [("agcn", 2), ("er", 3), ("weighted-ridge", 2)])
def test_the_result_does_not_depend_on_the_number_of_processes(method, processes, alone, tmp_path):
    """Three kinds of states. In tests/methods/test_contract.py two processes learn with every method."""
    train(processes, tmp_path / "run", "--method", method, *options(method))
    images = [(folder / "model/training-images.bin").read_bytes() for folder in (alone(method), tmp_path / "run")]
    assert images[0] == images[1] and len(images[0]) > 16 * 20
    one, several = (load_checkpoint(RunFolder(folder))["method"] for folder in (alone(method), tmp_path / "run"))
    difference = metrics(alone(method))["final"]["mAP"] - metrics(tmp_path / "run")["final"]["mAP"]
    assert abs(difference) < (1e-8 if method == "weighted-ridge" else 0.003)
    if "acm" in one:
        assert one["acm"]["n_ij"].equal(several["acm"]["n_ij"])  # counts of hard labels
        for name in ("sum_z", "sum_zy"):  # soft labels are those of networks that differ in their last bits
            assert one["acm"][name].allclose(several["acm"][name], rtol=0.02, atol=1e-3)
    if "buffer" in one:
        assert one["buffer"]["jpeg"].equal(several["buffer"]["jpeg"])
    assert len((tmp_path / "run" / "history.jsonl").read_bytes().splitlines()) == len(
        (alone(method) / "history.jsonl").read_bytes().splitlines()
    )


def test_only_the_first_process_prints(tmp_path):
    (output, error), *others = train(2, tmp_path / "run", "--method", "fine-tuning")
    assert output.startswith("fine-tuning: mAP") and not error
    assert others == [("", "")]


def test_a_mistake_is_one_line_of_the_first_process(tmp_path):
    codes, ((output, error), *others) = torchrun.run(2, "train", *SMALL, "--method", "agnc", "--out", tmp_path / "run")
    assert codes == [2, 2] and "did you mean 'agcn'" in error and error.count("\n") == 1
    assert (output, *others) == ("", ("", ""))


def test_a_folder_that_holds_a_run_is_refused_once(tmp_path):
    train(2, tmp_path / "run", "--method", "fine-tuning")
    codes, ((_, error), *others) = torchrun.run(2, "train", *SMALL, "--out", tmp_path / "run")
    assert codes == [2, 1] and "holds a run" in error and others == [("", "")]


def test_other_commands_refuse_torchrun(tmp_path):
    codes, ((_, error), _) = torchrun.run(2, "compare", *SMALL, "--methods", "er", "--out", tmp_path)
    assert codes == [2, 2] and "leave torchrun out" in error


def wait_for_checkpoint(folder, step):
    """Wait until a checkpoint of a later step than `step` is there: its position."""
    for _ in range(600):
        state = load_checkpoint(RunFolder(folder)) if (folder / "checkpoint.pt").exists() else None
        if state and (state["task"], state["step"]) > step:
            return state["task"], state["step"]
        time.sleep(0.05)
    raise AssertionError("no checkpoint in 30 seconds")


def test_a_stopped_run_of_two_processes_resumes_with_three(tmp_path, alone):
    """The buffer and the order of images are the same, so the result is that of one process."""
    folder = tmp_path / "run"
    started = torchrun.start(
        2, "train", *SMALL, "--method", "er", "--checkpoint-seconds", 0, "--batch-size", 8, "--out", folder
    )
    wait_for_checkpoint(folder, (0, 0))
    for process in started:
        process.send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [130, 130], outputs
    first, last = outputs[0][1].splitlines()
    assert first.startswith("stopping, saving a checkpoint")
    assert last.startswith("stopped; resume with: torchrun --nproc-per-node 2 -m lifelabel train --resume")
    assert not (folder / "metrics.json").exists() or not metrics(folder)["finished"]
    codes, outputs = torchrun.run(3, "train", "--resume", folder, "--quiet")
    assert codes == [0, 0, 0], outputs
    assert abs(metrics(folder)["final"]["mAP"] - metrics(alone("er"))["final"]["mAP"]) < 0.003
    assert json.loads((folder / "environment.json").read_text(encoding="utf-8"))["processes"] == 3


def test_a_lost_process_ends_the_others_and_the_restart_continues(tmp_path, alone):
    """What torchrun does after a lost process: it starts all of them again, with a count of restarts."""
    folder = tmp_path / "run"
    words = ("train", *SMALL, "--method", "agcn", "--checkpoint-seconds", 0, "--out", folder)
    started = torchrun.start(3, *words)
    position = wait_for_checkpoint(folder, (0, 0))
    os.kill(started[1].pid, signal.SIGKILL)
    outputs = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [1, -9, 1], outputs
    assert "Traceback" not in outputs[0][1] + outputs[2][1]
    assert wait_for_checkpoint(folder, (-1, 0)) >= position
    codes, outputs = torchrun.run(3, *words, TORCHELASTIC_RESTART_COUNT="1")
    assert codes == [0, 0, 0], outputs
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["task"], line["step"]) for line in lines] == [(task, step) for task in (1, 2) for step in (1, 2)]
    assert abs(metrics(folder)["final"]["mAP"] - metrics(alone("agcn"))["final"]["mAP"]) < 0.003


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["agcn", "weighted-ridge", "der++"])
def test_two_processes_share_a_gpu(method, tmp_path):
    """In bfloat16 runs differ more than on the CPU."""
    gpu = (*SIZES, "--device", "cuda", "--quiet", "--method", method, *options(method))
    done = command_server.run("train", *gpu, "--compile", "off", "--out", tmp_path / "one")
    assert done.returncode == 0
    codes, outputs = torchrun.run(2, "train", *gpu, "--out", tmp_path / "two")
    assert codes == [0, 0], outputs
    difference = metrics(tmp_path / "one")["final"]["mAP"] - metrics(tmp_path / "two")["final"]["mAP"]
    assert abs(difference) < 0.05
