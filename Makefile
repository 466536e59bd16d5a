# What people and CI call. On a fresh machine: Python 3.11 or newer, and make.
PYTHON ?= python3
BIN := .venv/bin
WORLDS ?= 100
SEEDS ?= 1000
MINUTES ?= 30
SEED ?= 1
WORKERS ?= auto
PYTHONS ?= 3.11 3.12 3.13 3.14
RECORDS ?= 20000
DEEP ?= --deep
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo travel loan test test-slow coverage test-pythons check bench bench-servers simulate explore fuzz compose-test torture docs reference lock format clean

help: ## Show what there is.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

.venv/runtime: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "saga needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

.venv/tools: .venv/runtime requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	touch $@

demo: .venv/runtime ## Run the order saga: four services, a kill in the middle, every book compared.
	$(BIN)/python -m services.demo

travel: .venv/runtime ## Run the travel example: seven services, four trips, refunds that keep fees.
	$(BIN)/python -m examples.travel

loan: .venv/runtime ## Run the loan example: documents start it, a person decides and is reminded.
	$(BIN)/python -m examples.loan

test: .venv/tools ## Run the tests, or some of them: ARGS=tests/progress.
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow" $(ARGS)

test-slow: .venv/tools ## Run the slow tests: long searches, servers in trouble, each runbook. CI runs them, too.
	$(BIN)/python -m pytest -n $(WORKERS) -m slow $(ARGS)

coverage: .venv/tools ## Run all tests, slow ones too, measure lines and branches, processes too, and compare with the floors.
	$(BIN)/python -m tests.coverage $(ARGS)

test-pythons: .venv/tools ## Run what a version can break on each Python that is to be had: PYTHONS="3.12 3.13".
	$(BIN)/python -m tests.pythons $(PYTHONS)

check: .venv/tools docs ## Format, lint, types, import rules, generated code, manifests, the choreography, the site, coverage of what is pure.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/saga contracts check
	$(BIN)/saga contracts lint
	$(BIN)/saga manifest --check services.order services.payment services.inventory services.shipping
	$(BIN)/saga check
	$(BIN)/python -m tests.coverage.pure

bench: .venv/tools ## Print what it reaches, beside the limit, in one run, or parts of it: ARGS=chain.
	$(BIN)/python -m benchmarks $(ARGS)

bench-servers: .venv/tools ## The same on Kafka and CouchbaseMock, beside the plain clients; starts and stops both.
	$(BIN)/python -m benchmarks.servers $(ARGS)

simulate: .venv/tools ## Simulate the order choreography with all faults: SEEDS=10000.
	$(BIN)/python -m services.simulate --seeds $(SEEDS)

compose-test: .venv/tools ## Run the system in containers, kill and cut off some of them, compare the books.
	$(BIN)/python -m tests.compose

torture: .venv/tools ## Kill, freeze and refuse on real Kafka and CouchbaseMock, under load: MINUTES=30 SEED=1.
	$(BIN)/python -m tests.torture --minutes $(MINUTES) --seed $(SEED)

fuzz: .venv/tools ## Put odd records into each log, real Kafka too, and account for each: RECORDS=20000 SEED=1.
	$(BIN)/python -m tests.fuzz --records $(RECORDS) --seed $(SEED)

explore: .venv/tools ## Explore the protocol with more faults than the tests do, thousands of services, more worlds, new draws, slow services, each target.
	$(BIN)/python -m verification $(DEEP)
	SAGA_TEST_SEEDS=$(WORLDS) $(BIN)/python -m pytest -n $(WORKERS) tests/testing -k in_worlds $(ARGS)
	SAGA_TEST_SEEDS=3 $(BIN)/python -m pytest -n $(WORKERS) -m "hypothesis" tests $(ARGS)
	SAGA_TEST_SLOW_S=0.3 $(BIN)/python -m pytest -n $(WORKERS) tests/cli --ignore tests/cli/test_jobs.py --ignore tests/cli/test_changes.py $(ARGS)
	SAGA_TEST_EACH_TARGET=1 $(BIN)/python -m pytest tests/packaging/test_make_targets.py $(ARGS)

format: .venv/tools ## Format and mend what can be mended.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove what the other targets made.
	rm -rf .venv .saga build *.egg-info

docs: .venv/tools ## Build the site of the documentation, without a network: open build/site/index.html.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

reference: .venv/tools ## Write the generated pages of docs/reference anew.
	$(BIN)/python -m tests.docs.settings_page
	$(BIN)/python -m tests.docs.reference_pages

lock: .venv/tools ## Pin the newest versions that fit, with hashes.
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --upgrade --quiet \
	  --custom-compile-command "make lock" --extra monitor pyproject.toml requirements-build.in -o requirements.lock
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --upgrade --quiet \
	  --custom-compile-command "make lock" -c requirements.lock requirements-dev.in -o requirements-dev.lock
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --upgrade --quiet \
	  --custom-compile-command "make lock" -c requirements.lock -c requirements-dev.lock --extra kafka --extra couchbase --extra encryption --extra http --extra monitor --extra traces \
	  pyproject.toml requirements-build.in -o requirements-servers.lock
