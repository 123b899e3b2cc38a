"""Mistakes of the user in commands that train: one line on stderr, exit code 2, no traceback, and nothing is written.

tests/config has wrong values of options; the tests of the other commands have their own mistakes.
"""

import shlex

import pytest

METHODS = "compare --methods er,fine-tuning"
LWF = "tune --method lwf"
VARIED = "the runs of a comparison differ in it; remove it"
MISTAKES = {
    "train --backbone tny": "unknown backbone 'tny': did you mean 'tiny'?",
    "train --backbone resnet102": "did you mean 'resnet101'?",
    "train --backbone timm/resnet8": "unknown timm model 'resnet8'",
    "train --lambdas 1,1,1": "No such option: --lambdas",
    "train --method fine-tuning --set method.lambdas=1,1,1": "'lambdas' is an option of",
    "train --set lr": "--set takes NAME=VALUE, not 'lr'",
    "train --set lr=[1": "--set lr, line 2, is not valid YAML: cannot read the value '[1'",
    "train --set lr=2020-99-99": "2020-99-99",
    "train --set stream_options=3": "stream_options",
    "train --device gpu": "unknown device 'gpu': give auto, cpu, cuda, cuda:N or mps",
    "train --device ''": "unknown device ''",
    "train --device cuda:x": "unknown device 'cuda:x'",
    "train --device cuda:-1": "unknown device 'cuda:-1'",
    "train --device cuda:99": "'cuda:99' does not exist",
    "train --words /nowhere/glove.txt": "cannot read the word vectors /nowhere/glove.txt",
    "train --config /nowhere/a.yaml": "cannot read the configuration /nowhere/a.yaml",
    "compare --methods er,acgn": "did you mean 'agcn'?",
    "compare --methods ''": "unknown method ''",
    "compare --seeds 2-1": "--seeds '2-1' contains no seed, or more than 1000",
    "compare --orders 0": "--orders must be 1 to 1000, not 0",
    "compare --jobs 0": "--jobs must be at least 1",
    "compare --config /nowhere.yaml": "/nowhere.yaml",
    "compare --on slurm --jobs 0": "--jobs must be at least 1",
    "compare --on slurm": "--on slurm needs the commands of Slurm",
    "compare --slurm time=5": "--slurm needs --on slurm",
    f"{METHODS} --set seed=1": f"--set seed: {VARIED}, and give --seeds",
    f"{METHODS} --set task_order=1": f"--set task_order: {VARIED}, and give --orders",
    f"{METHODS} --set larning_rate=1": "'larning_rate'",
    f"{METHODS} --set method.bufer_images=5": "'bufer_images': did you mean 'buffer_images'?",
    f"{METHODS} --set method.mix=5": "unknown option of the chosen methods 'mix'",
    f"{METHODS} --set method.buffer_images=0": "buffer_images must be at least 1",
    f"{METHODS} --set stream.classes=99": "30 classes",
    f"{METHODS} --device cuda:99": "'cuda:99'",
    f"{METHODS} --backbone tny": "unknown backbone 'tny'",  # found by the first run
    "study lambda": "did you mean 'lambdas'?",
    "study lambdas --set method.lambdas=[1,1,1]": "method.lambdas: the rows of this study differ in it; remove it",
    "study acm --dry-run": "--dry-run needs --on slurm",
    "study acm --on slurm --slurm array=1": "--slurm array",
    "study": "STUDY",
    **{f"demo --seeds {seeds}": "--seeds" for seeds in ("x", "3-1", "''", "1,,2", "-1", "0-999999999999")},
    "leaderboard --fidelities tuned,plan": "did you mean 'plain'?",
    "leaderboard --methods frozn": "did you mean 'frozen'?",
    "leaderboard --stream scenez": "did you mean 'scenes'?",
    "leaderboard --stream scenes --stream coco-b0-c10": "stream coco-b0-c10 needs the folder",
    "leaderboard --stream scenes --stream coco --root /nowhere": "there is no folder /nowhere",
    "leaderboard --weights none": "weights is for streams of photographs",
    "leaderboard --set stream.rot=1": "unknown option of the chosen streams 'rot'",
    "leaderboard --set fidelity=plain": "give --fidelities",
    "leaderboard --page-only --overwrite": "leave out --overwrite",
    "leaderboard --page-only --on slurm": "leave out --on",
    "leaderboard --page-only": "has no run of these streams",
    "leaderboard --jobs 0": "--jobs must be at least 1",
    "tune": "Missing option",
    "tune --method fine-tunning": "unknown method 'fine-tunning': did you mean 'fine-tuning'?",
    "tune --method lwf,": "unknown method ''",
    "tune --method er --on slrum": "did you mean 'slurm'?",
    "tune --method er --on slurm": "--on slurm needs the commands of Slurm",
    f"{LWF} --trials 0": "--trials must be at least 1, not 0",
    f"{LWF} --hold-out 0": "--hold-out must be more than 0: options must not be chosen on test images",
    f"{LWF} --hold-out 2": "hold_out must be at most 0.9",
    f"{LWF} --first-tasks 0": "first_tasks must be at least 1",
    f"{LWF} --first-tasks 6": "stream scenes has 5 tasks, not 6: lower first_tasks",
    f"{LWF} --set seed=3": "--set seed: the search sets it; give --method, --seeds, --first-tasks, --hold-out, --proxy",
    f"{LWF} --proxy-images 9": "proxy_images 9 has no effect without proxy",
    f"{LWF} --proxy --set stream.classes=30": "too few for a proxy stream of 5 tasks: leave out --proxy and search on",
    f"{LWF} --proxy --first-tasks 6": "stream scenes-proxy has 5 tasks, not 6",
    f"{LWF} --set method.mixx=3": "unknown option of method lwf 'mixx'",
    f"{LWF} --stream split-coco": "stream split-coco needs the folder of its images",
    f"{LWF} --seeds x": "--seeds takes 0 or 0-2",
    f"{LWF} --config c.yaml": "c.yaml holds options of method agcn: remove them to use --method lwf",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_and_writes_nothing(refused, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without the commands of Slurm
    (tmp_path / "c.yaml").write_text("method: agcn\nmethod_options: {mix: 0.1}\n")
    assert MISTAKES[words] in refused(*shlex.split(words), "--out", "out")
    assert not list(tmp_path.rglob("config.yaml")) and not list(tmp_path.rglob("preset.yaml"))
