"""Completion in the shell: names without torch, and the answers of the command."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from lifelabel.cli.completion import method_names, stream_names, study_names
from lifelabel.methods import METHODS
from lifelabel.search.studies import STUDIES
from lifelabel.streams import STREAMS

CASES = {
    "tra": ["train"],
    "train --method e": ["ewc", "er"],
    "compare --methods er,l": ["er,lwf", "er,l3a"],
    "train --stream split-c": ["split-coco"],
    "data inspect sce": ["scenes"],
    "study ": list(STUDIES),
    "list m": ["methods", "metrics"],
    "train --fidelity p": ["paper", "plain"],
    "train --resume ru": [],  # the shell completes paths itself
}
ANSWERS = """
import contextlib, io, json, os, sys
from lifelabel.cli.main import main
sys.argv = ["lifelabel"]
answers = {}
for words in json.loads(os.environ["CASES"]):
    os.environ.update(COMP_WORDS=f"lifelabel {words}", COMP_CWORD=str(words.count(" ") + 1))
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
        main()
    answers[words] = output.getvalue().split()
print(json.dumps([answers, "torch" in sys.modules]))
"""


def test_names_are_those_of_the_registries():
    assert method_names() == list(METHODS) and stream_names() == list(STREAMS) and study_names() == list(STUDIES)


def test_the_command_answers_without_torch():
    env = {**os.environ, "_LIFELABEL_COMPLETE": "complete_bash", "CASES": json.dumps(list(CASES))}
    done = subprocess.run([sys.executable, "-c", ANSWERS], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [CASES, False]


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
def test_bash_completes_names(tmp_path):
    program = tmp_path / "lifelabel"
    program.write_text(f"#!{sys.executable}\nfrom lifelabel.cli.main import main\nmain()\n")
    program.chmod(0o755)
    code = """
eval "$(_LIFELABEL_COMPLETE=source_bash lifelabel)"
COMP_WORDS=(lifelabel train --method weig); COMP_CWORD=3
_lifelabel_completion lifelabel
echo "${COMPREPLY[@]}"
"""
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", code], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("weighted-ridge\n", "")
