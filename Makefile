# `make run` tunes the packaged CPU recipe; `make test` runs the checks and the quick tests, `make test-full` the tests
# that it leaves out, `make test-releases` those of Megatron-Core on its other releases. All of them make .venv first.
# `make test-trainers` tunes real Megatron-LM (a checkout that MEGATRON_LM names) and Megatron-Bridge on CPU ranks, in an
# environment of its own.
# TORCH_INDEX is a further package index to take torch from, such as that of its CPU builds.
PYTHON ?= python3
TORCH_INDEX ?=
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TRAINERS := .venv-trainers
# what waits for `make test-full`: pyproject.toml says what each of these markers means
LATER  := faults or browser or cold or thorough or installs or slurm or trainers
# the files with such tests: a worker imports all that it collects
MARKS  := $(shell echo "$(LATER)" | sed "s/ or /|/g")
LATER_FILES = $(sort $(shell grep -rlE "mark\.($(MARKS))|needs_browser|import few" --include="test_*.py" tests))
WORKERS := 2
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# modules are compiled once, not by every process that a test starts, also where the environment asks otherwise
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test test-full test-releases test-trainers check lint types layers docs unit clean

run: $(STAMP)
	$(BIN)/moe-autotune run cpu-moe-slow --budget 20

test: check unit

check: lint types layers docs

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

layers: $(STAMP)
	$(BIN)/lint-imports

# the site of the documents, its links followed: build/site/index.html
docs: $(STAMP)
	$(BIN)/python -m docs.site build/site

unit: $(STAMP)
	$(PYTEST) -m "not ($(LATER))"

# tests of launchers wait most of the time: for deadlines, for Slurm's next look, for a suspension to end
test-full: WORKERS := 4
test-full: $(STAMP)
	$(PYTEST) -m "($(LATER)) and not trainers" $(LATER_FILES)

test-releases: $(STAMP)
	$(BIN)/python -m tests.releases -- --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder -q

test-trainers: $(TRAINERS)/.installed
	$(TRAINERS)/bin/python -m pytest -m trainers tests/trainers

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[megatron,mlflow,dev]'
	touch $(STAMP)

$(TRAINERS)/.installed: pyproject.toml constraints.txt tests/trainers/requirements.txt
	$(PYTHON) -m venv $(TRAINERS)
	$(TRAINERS)/bin/pip install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(TRAINERS)/bin/pip install --quiet --constraint constraints.txt --editable '.[megatron,dev]'
	$(TRAINERS)/bin/pip install --quiet --requirement tests/trainers/requirements.txt
	$(TRAINERS)/bin/pip install --quiet --no-deps megatron-bridge==0.3.1 triton
	touch $(TRAINERS)/.installed

clean:
	rm -rf $(VENV) $(TRAINERS) build *.egg-info
