"""What README shows, run: its Python, and its commands as far as they are commands of ours."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line.strip() for line in README.splitlines() if re.match(r"\s{4,}lifelabel ", line)]
SMALL = "--set stream.train_images=60 --set stream.test_images=60"
TINY = "--backbone tiny --weights none --image-size 32"


def test_the_python_example_runs_in_under_ten_lines(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    code = "\n".join(line.removeprefix("   ") for line in code.splitlines())
    assert len([line for line in code.splitlines() if line.strip()]) < 10
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.match(r"mAP 0\.\d+, forgetting -?0\.\d+\n1 0\.\d+\n", done.stdout)
    assert (tmp_path / "runs/python/metrics.json").exists()


def take_photographs(folder):
    """What a reader has: photos.csv and photos/."""
    (folder / "photos").mkdir()
    rows = ["image,labels"]
    for i in range(60):
        Image.new("RGB", (40, 30), (4 * i, 90, 200 - 3 * i)).save(folder / "photos" / f"IMG_{i:04}.jpg")
        rows.append(f"IMG_{i:04}.jpg,{';'.join(name for k, name in enumerate(('dog', 'beach', 'car')) if (i + k) % 3)}")
    (folder / "photos.csv").write_text("\n".join(rows))


def test_the_commands_run_in_the_order_of_the_page(tmp_path):
    take_photographs(tmp_path)
    assert len(COMMANDS) >= 8
    for line in COMMANDS:
        command = line.replace("lifelabel ", f"{sys.executable} -m lifelabel ", 1)
        if re.search("train|compare|study", line) and "--resume" not in line:
            first, arrow, target = command.partition(" > ")
            first = first.replace("--methods all", "--methods fine-tuning,frozen")  # all of them take minutes
            command = f"{first} {TINY if 'photos' in line else SMALL}{arrow}{target}"
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (line, done.stderr)
    assert (tmp_path / "runs/report/report.png").exists() and (tmp_path / "runs/compare/table.tex").exists()
    assert (tmp_path / "runs/inspect/photos/task-1.png").exists() and (tmp_path / "runs/mine/metrics.json").exists()


@pytest.mark.parametrize("page", sorted(p.relative_to(ROOT) for p in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]))
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert target.startswith("http") or os.path.exists(ROOT / page.parent / target), target
