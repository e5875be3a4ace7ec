# The commands of this repository; `make help` lists them. Everything runs inside .venv, which is made on demand.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What pytest, the benchmarks and the demo get on their command lines: `make test ARGS="tests/outbox -x"`.
ARGS ?=

.PHONY: help
help: ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "memplane needs Python 3.11, 3.12 or 3.13; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "python's venv module is incomplete (on Debian: apt-get install python3-venv)" >&2; rm -rf $(VENV); exit 1; }
	@echo "installing the locked dependencies into $(VENV) (a minute or two the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: venv
venv: $(READY) ## make the environment (.venv) from requirements.lock

.PHONY: demo
demo: $(READY) ## a memory service with a real corpus on embedded servers, until Ctrl-C
	@exec $(BIN)/python -m demo $(ARGS)

.PHONY: test
test: $(READY) ## every test but the long ones, on a PostgreSQL, Milvus and Neo4j of its own
	@test -n "$${MEMPLANE_TEST_STACK:-}" || $(BIN)/python -m tests.stack fetch
	@exec $(BIN)/python -m pytest -m "not full" $(ARGS)

.PHONY: test-full
test-full: $(READY) ## all tests, the long ones too
	@test -n "$${MEMPLANE_TEST_STACK:-}" || $(BIN)/python -m tests.stack fetch
	@exec $(BIN)/python -m pytest --timeout 3600 $(ARGS)

.PHONY: lint
lint: $(READY) ## formatting, lints, strict types, layers, and whether the lock covers pyproject.toml
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy --strict -p memplane -p memplane_operator
	@$(BIN)/lint-imports
	@$(BIN)/python .ci/check_lock.py

.PHONY: format
format: $(READY) ## format the code and apply the safe fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: bench
bench: $(READY) ## the product beside its plain peers, each with figures and ratio (ARGS="--quick --rows write,drain")
	@exec $(BIN)/python -m bench $(ARGS)

.PHONY: chaos
chaos: $(READY) ## everything beneath the clients is killed and paused; then what was told must hold (ARGS="--seconds 1800")
	@$(BIN)/python -m tests.stack fetch
	@exec $(BIN)/python -m chaos $(ARGS)

.PHONY: experiments
experiments: $(READY) ## recovery: the built wheel in a clean environment, killed and restarted beside real services
	@exec $(BIN)/python -m experiments $(ARGS)

.PHONY: stack
stack: $(READY) ## start the servers of the tests and keep them (python -m tests.stack down ends them)
	@$(BIN)/python -m tests.stack up

.PHONY: docs
docs: $(READY) ## write the generated reference pages of docs/ again
	@$(BIN)/python -m docs.generate

.PHONY: crd
crd: $(READY) ## write the MemoryBackend resource definition again from its models
	@$(BIN)/python -m memplane_operator.api.crd > crds/memplane.dev_memorybackends.yaml
	@cp crds/memplane.dev_memorybackends.yaml charts/memplane/files/

# Scripts that make a kind cluster and its images without a registry; where they are absent, kind and docker do.
export MEMPLANE_CLUSTER_SCRIPTS ?= $(abspath $(wildcard ../shared/cluster))

.PHONY: e2e
e2e: $(READY) ## the promises on a real Kubernetes cluster: kind's, or MEMPLANE_E2E_CONTEXT (see CONTRIBUTING.md)
	@exec $(BIN)/python -m pytest e2e -q -m "not full" --timeout 3600 --durations 15 $(ARGS)

.PHONY: e2e-full
e2e-full: $(READY) ## every end-to-end test
	@exec $(BIN)/python -m pytest e2e -q --timeout 7200 --durations 0 $(ARGS)

.PHONY: lock
lock: ## resolve the dependencies again into requirements.lock (needs uv and a package index)
	@command -v uv >/dev/null || test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	@PATH="$(BIN):$$PATH" uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header --no-annotate $(UPGRADE) \
		--extra postgres --extra milvus --extra neo4j --extra mysql --extra openai --extra http --extra otel \
		--extra service --extra embedded --extra operator --group build --group test --group lint \
		--output-file requirements.lock
	@PATH="$(BIN):$$PATH" uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header --no-annotate --constraint requirements.lock \
		--extra service --extra operator --extra otel --extra mysql --group build --output-file requirements-image.lock
	@$(PYTHON) -c 'import pathlib, sys; sys.exit(any("://" in p.read_text() for p in pathlib.Path(".").glob("*.lock")))'

.PHONY: clean
clean: ## end the test servers, remove caches, builds and the data of demo and tests; .venv stays
	@test ! -x $(BIN)/python || $(BIN)/python -m tests.stack down >/dev/null 2>&1 || true
	@rm -rf .memplane .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .schemathesis dist build
	@find service operator tests bench chaos demo docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
