"""What README shows, run: its Python, and its commands as far as they are commands of ours."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line.strip() for line in README.splitlines() if re.match(r"\s{4,}lifelabel ", line)]
SMALL = "--set stream.train_images=60 --set stream.test_images=60"


def test_the_python_example_runs_in_under_ten_lines(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    code = "\n".join(line.removeprefix("   ") for line in code.splitlines())
    assert len([line for line in code.splitlines() if line.strip()]) < 10
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.match(r"mAP 0\.\d+, forgetting -?0\.\d+\n1 0\.\d+\n", done.stdout)
    assert (tmp_path / "runs/python/metrics.json").exists()


def test_the_commands_run_in_the_order_of_the_page(tmp_path):
    assert len(COMMANDS) >= 6
    for line in COMMANDS:
        command = line.replace("lifelabel ", f"{sys.executable} -m lifelabel ", 1)
        if "train" in line and "--resume" not in line:
            first, arrow, target = command.partition(" > ")
            command = f"{first} {SMALL}{arrow}{target}"
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (line, done.stderr)
    assert (tmp_path / "runs/report/report.png").exists()


@pytest.mark.parametrize("page", sorted(p.relative_to(ROOT) for p in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]))
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert target.startswith("http") or os.path.exists(ROOT / page.parent / target), target
