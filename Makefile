# Everything a newcomer needs: `make demo` and `make test`, with Python 3.11+ and nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
SOURCES := .

.PHONY: demo test lint types tests bench fast plain train clean

demo: $(VENV)/installed-engine
	$(BIN)/sundog demo

test: lint types tests

lint: $(VENV)/installed-test
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(VENV)/installed-test
	$(BIN)/mypy

tests: $(VENV)/installed-test
	$(BIN)/python -m pytest

bench: $(VENV)/installed-test
	$(BIN)/python -m tests.bench

fast: $(VENV)/installed-test
	$(BIN)/python -m sundog.fast build

plain:
	$(PYTHON) -m sundog.fast remove

train: $(VENV)/installed-train
	$(BIN)/python -m runtime.training.train

clean: plain
	rm -rf $(VENV) build *.egg-info

$(VENV)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Sundog needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/installed-engine: $(VENV)/python pyproject.toml requirements.lock
	$(PIP) install --quiet --constraint requirements.lock --editable '.[engine]'
	touch $@

$(VENV)/installed-train: $(VENV)/python pyproject.toml requirements.lock
	$(PIP) install --quiet --constraint requirements.lock --editable '.[train]'
	touch $@

$(VENV)/installed-test: $(VENV)/installed-engine
	$(PIP) install --quiet --constraint requirements.lock --editable '.[engine,test]'
	touch $@
