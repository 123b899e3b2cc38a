# `make demo` and `make test` do all the set-up: a virtual environment in .venv with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test faults figures lock dist clean

demo: $(VENV)/.installed
	$(BIN)/lifelabel demo

test: $(VENV)/.test-installed
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto

# Kills, damaged files, full disks and malicious requests: docs/reliability.md. About 10 minutes on two cores.
faults: $(VENV)/.test-installed
	$(BIN)/python -m pytest -n 2 tests/faults tests/engine/test_distributed.py tests/cli/test_compare.py --faults full --faults-json faults.json

# Writes the measured figures of README.md and docs/ from results/ (CONTRIBUTING.md).
figures: $(VENV)/.installed
	$(BIN)/python -m benchmarks.figures

# Keeps the versions that still fit pyproject.toml. UPGRADE=--upgrade takes the newest of all. requirements.lock has all
# packages of all extras with their hashes, for the job of the tests that requires them. constraints.txt has the same
# versions without hashes: with hashes in a constraint, pip would refuse an editable install and local builds of torch.
lock: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv packaging
	$(BIN)/python -m uv pip compile --quiet $(UPGRADE) --universal --python-version 3.10 --all-extras \
	  --no-annotate --generate-hashes --custom-compile-command 'make lock' --output-file requirements.lock pyproject.toml
	sed -E '/^ +--hash/d; s/ *\\$$//' requirements.lock > constraints.txt
	$(BIN)/python .ci/licences.py

dist: $(VENV)/bin/python
	rm -rf dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build twine
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "lifelabel needs Python 3.10 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing lifelabel and torch into $(VENV) (a few minutes, about 5 GB)"
	$(PIP) --editable .
	@touch $@

$(VENV)/.test-installed: $(VENV)/.installed
	$(PIP) --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .ruff_cache .mypy_cache
