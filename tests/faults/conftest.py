"""The size of the fault suite, and its figures.

`--faults full` selects the whole suite, which `make faults` runs. By default a small part runs, within `make test`.
"""

import json
from collections import Counter
from types import SimpleNamespace

import pytest

SIZES = {
    "small": SimpleNamespace(inputs=45, resumes=2, kills=20, signals=1, disks=2, requests=8, uploads=60),
    "full": SimpleNamespace(inputs=640, resumes=40, kills=300, signals=8, disks=8, requests=150, uploads=2000),
}
"""The two sizes of the suite.

inputs: damaged files for a reader of cost 1. resumes: for each file of an interrupted run. kills: of all commands.
signals: repetitions of each. disks: sizes of a full disk. requests: for each operation of the web API. uploads: damaged
images and bodies that are sent to it.
"""
_FIGURES = "faults"


@pytest.fixture(scope="session")
def size(pytestconfig):
    return SIZES[pytestconfig.getoption("faults")]


@pytest.fixture(scope="session")
def seed(pytestconfig):
    return pytestconfig.getoption("faults_seed")


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """The folder of a small finished run with all optional files."""
    import lifelabel

    folder = tmp_path_factory.mktemp("fuzz") / "run"
    small = {"train_images": 40, "test_images": 40}
    lifelabel.train(folder, method="agcn", tasks=2, stream_options=small, save_scores=True, device="cpu")
    return folder


@pytest.fixture
def count(record_property):
    """Add to the figures of the suite: `count(kills=3, survived=3)`."""
    return lambda **figures: record_property(_FIGURES, figures)


def pytest_terminal_summary(terminalreporter, config):
    total = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "teardown":  # which has the figures of the whole test
                for name, figures in report.user_properties:
                    total.update(figures if name == _FIGURES else {})
    if not total:
        return
    terminalreporter.section(f"faults ({config.getoption('faults')}, seed {config.getoption('faults_seed')})")
    for name, value in sorted(total.items()):
        terminalreporter.line(f"{name.replace('_', ' ')}: {value:,}")
    if path := config.getoption("faults_json"):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(dict(sorted(total.items())), file, indent=1)
