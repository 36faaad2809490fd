## make serve   sets everything up and serves conversations        make test   sets everything up and runs the tests
## Others: test-fast (less than a minute), lint, format, bench, constraints, clean. Extra words: make serve ARGS="--port 9000"

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=

.PHONY: help serve test test-fast lint format bench constraints clean

help:
	@sed -n 's/^## //p' $(firstword $(MAKEFILE_LIST))

serve: $(READY)
	@exec $(BIN)/perdure serve $(ARGS)

# Three runs, so that there is never more than one Ray: none, one shared by all tests, one for each server that is started.
test: $(READY)
	@$(BIN)/python -m pytest tests/unit tests/conformance $(ARGS)
	@$(BIN)/python -m pytest tests/cluster $(ARGS)
	@$(BIN)/python -m pytest tests/fault tests/server $(ARGS)

# Without what is marked slow (tests/conftest.py says which): a quarter of the time, and `make test` has it.
test-fast: $(READY)
	@$(BIN)/python -m pytest tests/unit tests/conformance -m "not slow" $(ARGS)

lint: $(READY)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(READY)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(READY)
	@for script in $$(grep -l __main__ tests/bench/*.py); do echo "== $$script"; $(BIN)/python "$$script" $(ARGS); done

# The versions of constraints.txt and no others, each file checked by its hash; then this folder itself, live.
# pip takes hashes only from a requirements file (-r), and cannot hash a folder: hence two steps.
$(READY): pyproject.toml constraints.txt
	@if command -v uv >/dev/null; then \
	  uv venv --quiet --allow-existing --python '>=3.11' $(VENV); \
	  uv pip install --quiet --python $(BIN)/python --require-hashes -r constraints.txt; \
	  uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e '.[test]'; \
	else \
	  for python in $(PYTHON) python3 python3.13 python3.12 python3.11 none; do \
	    if [ $$python = none ]; then echo "Python 3.11 or newer is needed; set PYTHON=/path/to/it." >&2; exit 1; fi; \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then break; fi; \
	  done; \
	  $$python -m venv $(VENV) || { echo "$$python cannot make a virtual environment; on Debian install python3-venv." >&2; exit 1; }; \
	  echo "Installing into $(VENV); the first time this takes a minute or two ..."; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e '.[test]'; \
	fi
	@touch $@

constraints: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@head -n 1 constraints.txt > $(VENV)/constraints.txt
	@printf 'hatchling\neditables\n' | $(BIN)/uv pip compile --quiet pyproject.toml - --extra test --universal \
	  --python-version 3.11 --generate-hashes --no-header --no-annotate >> $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt

clean:
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage dist
	@find actors storage compaction tests -name __pycache__ -type d -prune -exec rm -rf {} +
