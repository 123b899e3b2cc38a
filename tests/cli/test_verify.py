"""`lifelabel verify`: lines, exit codes and JSON. The checks are tested in tests/engine/test_verify.py."""

import json

from report.run_folders import edit_json


def test_one_line_for_each_check(output, agcn_run):
    lines = output("verify", agcn_run, "--device", "cpu").splitlines()
    assert [line.split(":")[0].split() for line in lines] == [
        ["ok", name]
        for name in ("checkpoint.pt", "checkpoint-previous.pt", "environment.json", "files", "configuration",
                     "stream", "images", "history.jsonl", "metrics.json", "model", "scores")
    ]  # fmt: skip
    assert lines[-1].startswith("ok          scores: 60 test images by the model: mAP ")
    assert lines[-1].endswith("tolerance 0.001")


def test_a_failed_check_has_exit_code_1(main, agcn_copy):
    edit_json(agcn_copy / "metrics.json", seed="7\n\x1b[31m")
    done = main("verify", agcn_copy, "--no-score")
    assert (done.returncode, done.stderr) == (1, "")
    assert "FAILED      configuration: seed: config.yaml has 0, metrics.json has 7" in done.stdout
    assert "\x1b" not in done.stdout and len(done.stdout.splitlines()) == 10
    done = main("verify", agcn_copy, "--no-score", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["ok"] is False
    assert {check["name"] for check in found["checks"] if check["state"] == "FAILED"} == {"files", "configuration"}


def test_a_mistake_has_exit_code_2(refused, agcn_copy, tmp_path):
    assert "is not a run folder" in refused("verify", tmp_path)
    assert "stream.tasks is not a path" in refused("verify", agcn_copy, "--set", "stream.tasks=3")
    assert "stream.root is not a path of stream scenes" in refused("verify", agcn_copy, "--root", tmp_path)
