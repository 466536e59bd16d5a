# What people and CI call. On a fresh machine: Python 3.11 or newer, and make.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check bench explore lock format clean

help: ## Show what there is.
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

.venv/runtime: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "saga needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

.venv/tools: .venv/runtime requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	touch $@

lock: .venv/tools ## Pin the newest versions that fit, with hashes.
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --upgrade --quiet \
	  --custom-compile-command "make lock" pyproject.toml requirements-build.in -o requirements.lock
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --upgrade --quiet \
	  --custom-compile-command "make lock" -c requirements.lock requirements-dev.in -o requirements-dev.lock
