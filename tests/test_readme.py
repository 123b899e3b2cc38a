"""The README: its Python code, its commands and its links."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from PIL import Image
from support import command_server

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line.strip() for line in README.splitlines() if re.match(r"\s{4,}lifelabel ", line)]
SMALL = "--set stream.train_images=60 --set stream.test_images=60"
TINY = "--backbone tiny --weights none --image-size 32"
MY_METHOD = re.findall(r"```python\n(.*?)```", (ROOT / "docs/extending.md").read_text(encoding="utf-8"), re.DOTALL)[0]


def test_the_python_example_runs_in_under_ten_lines(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    code = "\n".join(line.removeprefix("   ") for line in code.splitlines())
    assert len([line for line in code.splitlines() if line.strip()]) < 10
    code = code.replace('"train_images": 1000, "test_images": 500', '"train_images": 60, "test_images": 60')
    done = command_server.run(code=code, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"mAP 0\.\d+, forgetting -?0\.\d+\n\('sky', .*\) \{.*\}\n", done.stdout)
    assert (tmp_path / "runs/python/metrics.json").exists()


def write_user_files(folder):
    """The files that a reader of the page has: photos.csv, more.csv, june.csv, photos/ and my_method.py."""
    (folder / "photos").mkdir()
    rows = ["image,labels"]
    for i in range(60):
        Image.new("RGB", (40, 30), (4 * i, 90, 200 - 3 * i)).save(folder / "photos" / f"IMG_{i:04}.jpg")
        rows.append(f"IMG_{i:04}.jpg,{';'.join(name for k, name in enumerate(('dog', 'beach', 'car')) if (i + k) % 3)}")
    (folder / "photos.csv").write_text("\n".join(rows))
    (folder / "more.csv").write_text("\n".join(rows[:40]))
    (folder / "june.csv").write_text(
        "\n".join([rows[0], *(f"{row};boat" if k % 2 else row for k, row in enumerate(rows[1:]))])
    )
    (folder / "my_method.py").write_text(MY_METHOD)


def start_and_stop(words, folder):
    with command_server.start(*words, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("serving ")
        process.terminate()
    assert process.returncode == 0


def test_the_commands_run_in_the_order_of_the_page(lifelabel, tmp_path):
    write_user_files(tmp_path)
    assert len(COMMANDS) >= 9
    for line in COMMANDS:
        command, _, target = line.removeprefix("lifelabel ").partition(" > ")
        if re.search("train|compare|reproduce", line) and "--resume" not in line:
            command = command.replace("--methods all", "--methods fine-tuning,frozen")  # all of them take minutes
            command = command.replace("reproduce table1", "reproduce table1 --methods fine-tuning --seeds 0")
            command = command.replace("--seeds 0-2", "--seeds 0-1")
            command += f" {TINY if 'photos' in line else SMALL}"
        if command.startswith("serve "):
            start_and_stop([*shlex.split(command), "--port", "0"], tmp_path)
            continue
        done = lifelabel(*shlex.split(command), cwd=tmp_path, timeout=300)
        assert done.returncode == 0, (line, done.stderr)
        if target:
            (tmp_path / target).write_text(done.stdout, encoding="utf-8")
    assert (tmp_path / "runs/report/report.html").exists() and (tmp_path / "runs/compare/table.tex").exists()
    assert (tmp_path / "runs/inspect/photos/task-1.png").exists()
    assert (tmp_path / "exported/model.onnx").exists()
    for run in ("a", "b", "mine", "june", "smooth"):
        assert (tmp_path / "runs" / run / "metrics.json").exists(), run


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]), ids=lambda p: p.name)
def test_links_point_to_files_and_headings(page):
    """Relative links exist, and so do the headings that they name."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page if not path else Path(os.path.normpath(page.parent / path))
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in slugs, target


def test_tests_and_benchmarks_that_pages_name_exist():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    paths = set(re.findall(r"\b((?:tests|benchmarks)/[\w/]+\.py)", text))
    paths |= {f"{name.replace('.', '/')}.py" for name in re.findall(r"-m (benchmarks\.\w+)", text)}
    assert not sorted(path for path in paths if not (ROOT / path).exists())
