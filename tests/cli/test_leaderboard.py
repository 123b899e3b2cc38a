"""`lifelabel leaderboard`: its runs, its files, a second call, and the page from runs without models."""

import csv
import json
import re
import shutil

import pytest
import yaml
from report.run_folders import edit_json, table_of

TINY = [f"stream.{name}" for name in ("classes=4", "tasks=2", "train_images=16", "test_images=8")]
SMALL = [*(word for setting in TINY for word in ("--set", setting)), "--device", "cpu"]
CHOSEN = ("--methods", "multi-task,frozen", "--seeds", "0")
FILES = {"leaderboard.md", "leaderboard.csv", "leaderboard.svg", "leaderboard.png"}
RUNS = [f"scenes-{fidelity}/{method}-s0" for fidelity in ("tuned", "plain") for method in ("multi-task", "frozen")]


@pytest.fixture(scope="module")
def made(lifelabel, tmp_path_factory):
    """Two methods, tuned and plain, one seed: (process, folder)."""
    out = tmp_path_factory.mktemp("leaderboard") / "out"
    done = lifelabel("leaderboard", *CHOSEN, *SMALL, "--jobs", "2", "--out", out)
    assert done.returncode == 0, done.stderr
    return done, out


def scores(run):
    return json.loads((run / "metrics.json").read_text())["final"]


def test_every_run_and_every_file(made):
    done, out = made
    assert {path.name for path in out.iterdir()} == {"scenes-tuned", "scenes-plain", "command.txt", *FILES}
    assert sorted(path.relative_to(out).as_posix() for path in out.glob("*/*")) == sorted(RUNS)
    for name in RUNS:
        config = yaml.safe_load((out / name / "config.yaml").read_text())
        assert name == f"scenes-{config['fidelity']}/{config['method']}-s{config['seed']}"
    assert len(done.stderr.splitlines()) == 4 and "scenes, plain, frozen, seed 0: mAP " in done.stderr
    page = (out / "leaderboard.md").read_text(encoding="utf-8")
    tuned, plain = (f"{100 * scores(out / run)['mAP']:.2f}" for run in RUNS[1::2])
    assert ["1", "frozen", tuned] in [line[:3] for line in table_of(page)]
    assert next(line for line in table_of(page) if line[1:2] == ["frozen"])[6] == plain
    assert "(leaderboard.svg)" in page and page.count("Not run:") == 0
    with open(out / "leaderboard.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["fidelity"], row["rank"], row["method"]) for row in rows] == [
        ("tuned", "", "multi-task"), ("tuned", "1", "frozen"), ("plain", "", "multi-task"), ("plain", "1", "frozen"),
    ]  # fmt: skip
    assert f"4 of 4 runs; written to {out}: leaderboard.md, " in done.stdout
    assert max(map(len, done.stdout.splitlines()[:5])) <= 100


@pytest.fixture
def copied(made, tmp_path):
    """The three files of each run that a table needs, as they come back from another machine."""
    out = tmp_path / "copy"
    for name in RUNS:
        (out / name).mkdir(parents=True)
        for file in ("config.yaml", "metrics.json", "environment.json"):
            shutil.copy(made[1] / name / file, out / name / file)
    return out


def test_the_page_alone_needs_three_files_of_a_run_and_no_data(output, made, copied):
    text = output("leaderboard", *CHOSEN, *SMALL, "--jobs", "2", "--page-only", "--out", copied)
    assert text == made[0].stdout.replace(str(made[1]), str(copied))
    page, expected = ((folder / "leaderboard.md").read_text(encoding="utf-8") for folder in (copied, made[1]))
    assert page == expected.replace(str(made[1]), str(copied))
    assert {path.name for path in copied.iterdir()} > FILES


def test_missing_and_damaged_runs_are_listed_on_the_page(main, copied):
    shutil.rmtree(copied / RUNS[2])
    edit_json(copied / RUNS[3] / "metrics.json", finished=False)
    args = ("--methods", "multi-task,frozen,lwf", "--seeds", "0-1", "--stream", "scenes", "--stream", "x/elsewhere.zip")
    done = main("leaderboard", *args, "--page-only", "--convention", "average", "--out", copied)
    assert done.returncode == 1
    assert "not finished: scenes, plain, frozen, seed 0: " in done.stdout
    assert "2 of 24 runs; written to " in done.stdout
    page = (copied / "leaderboard.md").read_text(encoding="utf-8")
    assert "| tuned mAP, mean over tasks ↑ |" in page
    assert re.search(r"\| frozen \|.*\| 1/2, 0/2 \| 64 \|", page)
    missing = ("tuned, multi-task, seed 1", "tuned, frozen, seed 1", "plain, multi-task, seed 0")
    assert f"\n2 of 12 runs. Not run: lwf. Missing: {'; '.join(missing)}; " in page
    assert "## elsewhere\n\ntuned: no run is finished." in page
    assert "## Runs that are not finished (1)\n\n- scenes, plain, frozen, seed 0: " in page
    (copied / RUNS[1]).rename(copied / "scenes-tuned" / "lwf-s0")
    done = main("leaderboard", "--methods", "lwf", "--seeds", "0", "--page-only", "--out", copied)
    assert done.returncode == 2 and "holds a run with another method" in done.stderr


def test_runs_of_one_row_with_different_options_are_not_averaged(main, copied):
    """The runs may come from several commands."""
    other = copied / "scenes-tuned" / "frozen-s1"
    shutil.copytree(copied / "scenes-tuned" / "frozen-s0", other)
    config = other / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 1").replace("batch_size: 8", "batch_size: 4"))
    done = main("leaderboard", "--methods", "frozen", "--seeds", "0-1", "--page-only", "--out", copied)
    assert done.returncode == 1 and "its row (batch_size 4, not 8" in " ".join(done.stdout.split())


def test_a_run_that_fails_is_listed_and_the_others_are_ranked(main, copied):
    """A folder that holds a run with other options is an error. The other runs are finished, also without a model."""
    config = copied / RUNS[3] / "config.yaml"
    config.write_text(config.read_text().replace("batch_size: 8", "batch_size: 9"))
    done = main("leaderboard", *CHOSEN, *SMALL, "--quiet", "--out", copied)
    assert (done.returncode, done.stderr) == (1, "")
    page = (copied / "leaderboard.md").read_text(encoding="utf-8")
    assert (
        "- scenes, plain, frozen, seed 0: " in page and "holds a run with other options (batch_size 9, not 8)" in page
    )
    assert "3 of 4 runs; written to " in done.stdout
