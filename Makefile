# `make run` tunes the packaged CPU recipe; `make test` runs the checks and the quick tests, `make test-full` the tests
# that it leaves out. All of them make .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# what waits for `make test-full`: pyproject.toml says what each of these markers means
LATER  := faults or browser or cold or thorough or slurm
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: run test test-full check lint types layers unit clean

run: $(STAMP)
	$(BIN)/moe-autotune run cpu-moe-slow --budget 20

test: check unit

check: lint types layers

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

unit: $(STAMP)
	$(PYTEST) -m "not ($(LATER))"

test-full: $(STAMP)
	$(PYTEST) -m "$(LATER)"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info
