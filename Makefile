# Everything a newcomer needs: `make demo` and `make test`, with Python 3.11+ and nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --no-compile --constraint requirements.lock --editable
SOURCES := .
PARALLEL := --numprocesses auto --dist worksteal
ENGINE_TESTS := tests/runtime/test_*.py tests/runtime/kv_transfer tests/actors/api/test_live_openai.py

# The suite begins Python more than a hundred times: a third of a short command is compiling what is compiled already.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-long test-avx2 test-without-kernels test-ray test-clients experiments lint types tests house bench soak gpu fast plain train docs wheels release clean

demo: $(VENV)/installed-engine
	$(BIN)/sundog demo

# Types are checked beside the tests, which leave a part of the cores idle at their beginning and end.
test: lint
	@$(MAKE) --no-print-directory --jobs=2 types tests

lint: $(VENV)/installed-test
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(VENV)/installed-test
	$(BIN)/mypy

# Lines by room, the longest files and functions, and two walks through the code: a report, no limit.
house:
	$(PYTHON) -m tools.sizes
	$(PYTHON) -m tools.walks

# Half of the random cases: CI runs all of them compiled, `test-long` thrice as many. The few tests that fail beside
# all others are run again alone: on a busy machine the real clock fails tests, too.
tests: $(VENV)/installed-test
	SUNDOG_FUZZ=0.5 $(BIN)/python -m tests.again -- $(PARALLEL)

# What `make test` leaves out, because it is slow; of most a quicker test, or a case, there states the same law. Each
# file runs backwards: a test that needs the one before it fails. What is rare is left to `test-long`: sanitizers,
# every model, emulated CPUs, minutes of kills, every experiment.
test-all: $(VENV)/installed-test
	$(BIN)/python -m tests.again --only-long -- $(PARALLEL) --backwards

# The same laws on more seeds, traces and modules.
test-long: $(VENV)/installed-test
	SUNDOG_FUZZ=3 $(BIN)/python -m pytest $(PARALLEL) --long --rare

# The engine's tests as on a CPU whose best instructions are AVX2, and with torch's kernels alone.
test-avx2: $(VENV)/installed-test
	SUNDOG_NATIVE=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
		$(BIN)/python -m tests.again --moderate -- $(PARALLEL) $(ENGINE_TESTS)

test-without-kernels: $(VENV)/installed-test
	SUNDOG_NATIVE=off $(BIN)/python -m tests.again --moderate -- $(PARALLEL) $(ENGINE_TESTS)

# Engines, sweeps and the kernel's laws on a Ray cluster of this machine, which each of them begins and ends.
test-ray: $(VENV)/installed-test
	@$(MAKE) --no-print-directory $(VENV)/installed-ray || \
		{ echo "Ray cannot be installed for $$($(BIN)/python -V): nothing is tested on it" >&2; exit 1; }
	$(BIN)/python -m tests.again --ray -m ray -- tests/actors/test_kernel_laws.py tests/runtime/ray \
		tests/sundog/test_sweep_on_ray.py

# LiteLLM, LangChain and an older openai against a live server, in an environment of their own.
test-clients: $(VENV)/installed-test
	$(BIN)/python -m tests.clients

# Every experiment of docs/experiments gives the table, the picture and the numbers of its page. A sweep takes all cores.
experiments: $(VENV)/installed-test
	$(BIN)/python -m pytest tests/test_experiments.py --long --rare

bench: $(VENV)/installed-test
	$(BIN)/python -m tests.bench

# Three quarters of an hour or so: 50,000 requests of all manners to the embedded model, a day of an emulated
# server's, and ten minutes in which a process of a loaded server is killed or stopped every ten seconds. A tenth of
# it: `.venv/bin/python -m tests.soak --scale 0.1`.
soak: $(VENV)/installed-test
	$(BIN)/python -m tests.soak

# On a machine with a GPU, by its own Python with torch, transformers and pytest: nothing is installed, but for
# the wheels of a folder if WHEELS names one. The JSON goes to the folder OUT, else to tests/bench/results.
gpu:
	$(PYTHON) -m tests.gpu $(if $(WHEELS),--wheels $(WHEELS)) $(if $(OUT),--out $(OUT))

# With PGO=1 gcc compiles twice, the second time by counts of short replays: up to 6 % less CPU in a replay.
fast: $(VENV)/installed-fast
	$(BIN)/python -m sundog.fast build $(if $(PGO),--pgo)

plain:
	$(PYTHON) -m sundog.fast remove

train: $(VENV)/installed-train
	$(BIN)/python -m tools.tiny_model.train

# The documentation as a site with search, in build/site; a warning is an error.
docs: $(VENV)/installed-docs
	$(BIN)/python -m tools.site

# A wheel for each Python from 3.11 to 3.14 that is here, built, looked into, installed and tried: two minutes each,
# with PGO=1 five.
wheels: $(VENV)/installed-fast
	$(if $(PGO),SUNDOG_PGO=1) $(BIN)/python -m tools.wheels $(if $(ONLY),--only $(ONLY)) $(if $(OUT),--out $(OUT))

# Version, changelog and tag: `make release VERSION=0.3.0` says what it would change, with DO=1 it changes it.
release: $(VENV)/installed-fast
	$(BIN)/python -m tools.release $(if $(DO),--do) $(VERSION)

clean: plain
	rm -rf $(VENV) .venv-clients build dist *.egg-info

$(VENV)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Sundog needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/installed-%: $(VENV)/python pyproject.toml requirements.lock
	$(INSTALL) '.[$*]'
	@# The tests begin Python a hundred times; a demo imports a quarter of the files, and Python compiles those itself.
	@# Some packages bring files for other Pythons, which cannot be compiled.
	@[ $* != test ] || $(BIN)/python -W ignore -m compileall -q -q -j 0 $(VENV)/lib || true
	touch $@
