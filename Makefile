# On a fresh machine, `make demo` and `make test` suffice: both call `make install`.
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
MINUTES ?= 3
WORKERS ?= auto
STAMP   := $(VENV)/.installed
PIP     := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt

.PHONY: install demo test lint types layers check clean

install: $(STAMP)

# PyTorch is installed first, from the pinned constraints: another package would otherwise choose its build.
# All cores compile bytecode here, and that of src before the tests: with PYTHONDONTWRITEBYTECODE set, every process of
# the tests would compile it again.  Some packages contain files for other Python versions; their errors are ignored.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[all]' $$($(PYTHON) scripts/dev_requirements.py)
	@$(BIN)/python -m compileall -q -q -j 0 $(VENV)/lib || true
	@touch $@

demo: install
	@$(BIN)/wordloom demo --minutes $(MINUTES)

test: install
	@$(BIN)/python -m compileall -q src
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 15 $(PYTEST_ARGS)

lint: install
	$(BIN)/ruff check src tests benchmarks scripts docs/notebooks
	$(BIN)/ruff format --check src tests benchmarks scripts docs/notebooks

types: install
	$(BIN)/mypy

layers: install
	$(BIN)/lint-imports --no-cache

check: lint types layers test

clean:
	find src -name "*.nb[ic]" -delete
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
