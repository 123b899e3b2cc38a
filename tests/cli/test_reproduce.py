"""`lifelabel reproduce`: one target from the first run to the files, a second call, and --dry-run."""

import json

import pytest

TINY = [f"stream.{name}" for name in ("classes=4", "tasks=2", "train_images=16", "test_images=8")]
SMALL = [*(word for setting in TINY for word in ("--set", setting)), "--device", "cpu", "--seeds", "0"]


@pytest.fixture(scope="module")
def made(lifelabel, tmp_path_factory):
    out = tmp_path_factory.mktemp("reproduce") / "out"
    done = lifelabel("reproduce", "table2", *SMALL, "--jobs", "2", "--out", out)
    assert done.returncode == 0, done.stderr
    return done, out


def test_the_runs_are_trained_and_compared_with_the_paper(made):
    done, out = made
    assert {path.name for path in (out / "scenes-release").iterdir()} == {
        "agcn-s0", "agcn_blocks-intra-s0", "agcn_adjacency-identity-s0", "prs-s0",
    }  # fmt: skip
    folder = out / "scenes-release-table2"
    assert {path.name for path in folder.iterdir()} == {"reproduction.md", "reproduction.tex", "reproduction.json"}
    metrics = json.loads((out / "scenes-release/agcn-s0/metrics.json").read_text())["final"]
    ours = "/".join(f"{100 * metrics[name]:.1f}" for name in ("mAP", "CF1", "OF1"))
    mean = "/".join(f"{100 * metrics['cumulative_mean'][name]:.1f}" for name in ("mAP", "CF1", "OF1"))
    page = (folder / "reproduction.md").read_text(encoding="utf-8")
    for text in (done.stdout, page):
        assert "34.1/35.5/42.4" in text and ours in text and mean in text
        assert "Measured on scenes, drawn images, and not on Split-COCO" in text
    assert max(map(len, done.stdout.splitlines()[:20])) <= 100


def test_a_second_call_trains_nothing_and_a_picture_has_a_report(made, lifelabel):
    _, out = made
    done = lifelabel("reproduce", "fig4", *SMALL, "--out", out)
    assert done.returncode == 0 and "correlation" in done.stdout
    assert (out / "scenes-release-fig4/report.html").exists()
    dry = lifelabel("reproduce", "fig4", *SMALL, "--dry-run", "--out", out)
    assert "agcn-s0  finished in 0.00 h  agcn, seed 0" in dry.stdout
    assert dry.stdout.splitlines()[-1].startswith("1 runs; the missing ones take about 0.0 hours")


def test_existing_runs_are_compared_without_training(made, main, tmp_path):
    _, out = made
    done = main("reproduce", "table1", *SMALL, "--existing-only", "--out", out)
    assert done.returncode == 0 and not (out / "scenes-release/er-s0").exists()
    rows = [line.split("  ")[0].strip() for line in done.stdout.splitlines() if "/" in line]
    assert "prs" in rows and "er" not in rows
    assert "Not run: multi-task; fine-tuning; " in done.stdout
    refused = main("reproduce", "table1", *SMALL, "--existing-only", "--out", tmp_path)
    assert refused.returncode == 2 and "has no finished run of these methods and seeds" in refused.stderr


def test_a_dry_run_trains_nothing(main, tmp_path):
    done = main("reproduce", "table1", "--methods", "er,agcn", *SMALL, "--dry-run", "--out", tmp_path / "out")
    assert done.returncode == 0 and "7 runs; the missing ones take about 0.0 hours" in done.stdout
    assert not (tmp_path / "out").exists()


def test_on_a_cluster_a_dry_run_prints_the_job_script(main, tmp_path):
    words = ("--on", "slurm", "--slurm", "partition=gpu", "--device", "cuda", "--dry-run", "--out", tmp_path / "out")
    done = main("reproduce", "fig4", "--seeds", "0", *words)
    assert done.returncode == 0 and "#SBATCH --partition=gpu" in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("table4",), "unknown target 'table4'"),
        (("table1", "--regime", "autors"), "unknown regime 'autors': did you mean 'authors'?"),
        (("table1", "--set", "fidelity=plain"), "--set fidelity: the regime sets it"),
        (("table1", "--existing-only", "--overwrite"), "--existing-only trains nothing: leave out --overwrite"),
        (("table3", "--methods", "er"), "table3 has no run of er"),
        (("table1", "--slurm", "time=1"), "--slurm needs --on slurm"),
        (("fig4", "--root", "/nowhere"), "stream split-coco: there is no folder /nowhere"),
    ],
)
def test_mistakes(main, words, line):
    done = main("reproduce", *words)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {line}") and done.stderr.count("\n") == 1
