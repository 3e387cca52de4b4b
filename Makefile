# `make demo` and `make test` are all that most people need. Every target sets up the virtual environment, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test check network browser lint types docs clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# Installed anew only when what it is made from changes.
$(STAMP): pyproject.toml constraints.txt
	@echo "once: an environment of its own in $(VENV), then what mapl needs into it (a minute or two)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "mapl needs Python 3.11 or newer; try make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing mapl and what it needs"
	@$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev,flt,pandas,parquet,peer,privacy,ray,tensorboard]'
	@touch $@

demo: $(STAMP) ## MAPL on handwritten digits, compared with its control arm, with pictures
	@$(BIN)/mapl demo

test: $(STAMP) ## the tests to run after every change, a few minutes
	@$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

check: $(STAMP) ## the slow rest of the tests; MAPL_DATA=folder adds those on published data
	@$(BIN)/python -m pytest -n auto --dist worksteal -m "slow and not network"
	@$(BIN)/python tests/fuzz_letters.py

network: $(STAMP) ## networks of 8 and 12 real peers, one after another: kills, partitions, equality (a few minutes)
	@$(BIN)/python -m pytest -m network

browser: ## a Chromium and axe-core, if they can be had; without them the tests of pages are skipped
	@tests/get_browser.sh

lint: $(STAMP) ## ruff, as CI runs it
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(STAMP) ## mypy --strict, and the scripts beside the library against its types
	@$(BIN)/mypy
	@MYPYPATH=src $(BIN)/mypy --config-file .mypy-scripts.ini benchmarks examples results

docs: $(STAMP) ## write docs/recipe.md from the settings
	@$(BIN)/python -m mapl.report.reference > docs/recipe.md

clean: ## remove the environment and the caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
