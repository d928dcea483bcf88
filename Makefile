# The project's front door. `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# A folder with a build of torch for machines without a GPU. Without one the registry's is taken,
# which brings its CUDA libraries along.
WHEELS ?= ../shared/wheels
SEED ?= 0
export DDP_SEED = $(SEED)

VENV := .venv
BIN := $(VENV)/bin
TORCH := $(if $(wildcard $(WHEELS)/torch-2.13.0+cpu-*),cpu,cuda)
FIND_LINKS := $(if $(filter cpu,$(TORCH)),--find-links "$(WHEELS)")
READY := $(VENV)/.ready-$(TORCH)
PIP := $(BIN)/pip install -q --disable-pip-version-check
HARNESS := $(BIN)/python -m tests.harness

$(READY): requirements/dev.lock requirements/build.lock requirements/torch-$(TORCH).lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, got " + sys.version.split()[0])'
	@echo "setting up $(VENV) with torch for $(TORCH): takes minutes, once"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes -r requirements/build.lock -r requirements/dev.lock
	@$(PIP) --require-hashes --no-deps $(FIND_LINKS) -r requirements/torch-$(TORCH).lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: setup
setup: $(READY) ## Make the virtual environment

.PHONY: run
run: $(READY) ## Train the sample here: 2 nodes x 2 processes on handwritten digits
	@$(BIN)/ddpjob run manifests/samples/digits.yaml

.PHONY: test
test: check ## Everything that CI runs: checks, unit tests, a real API server, a real two-node cluster
	@if [ "$$(uname -s)" = Linux ] && [ "$$(id -u)" = 0 ]; then \
	  exec $(BIN)/pytest -m 'not sweep'; \
	else \
	  $(BIN)/pytest -m 'not api and not cluster and not sweep'; \
	  echo "make test: the API and cluster tests did not run: they need Linux and root" >&2; exit 1; \
	fi

.PHONY: test-fast
test-fast: $(READY) ## What needs neither root nor a cluster, nor more than a second or two each
	$(BIN)/pytest -q -m 'not api and not cluster and not sweep and not slow'

.PHONY: check
check: $(READY) ## Lint, types, layers, drift of generated files
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy tests
	$(BIN)/lint-imports
	$(BIN)/python -m tests.tools.generate --check

.PHONY: faults
faults: $(READY) ## Every known fault, the recovery table, 30 random kills (PART=api|cluster|recovery|kills: one alone)
	@$(BIN)/python -m tests.fault_player $(if $(PART),--part $(PART)) --wheels "$(WHEELS)" --seed $(SEED)

.PHONY: bench-recovery
bench-recovery: $(READY) ## Seconds from a fault to the first new update, beside torchrun alone, on a real two-node cluster
	@$(BIN)/python -m tests.benchmarks.recovery --wheels "$(WHEELS)" --seed $(SEED)

# The frameworks that are compared have an environment of their own: the product never sees them.
BENCH := .venv-bench
BENCH_READY := $(BENCH)/.ready-$(TORCH)
BENCH_PIP := $(BENCH)/bin/pip install -q --disable-pip-version-check --require-hashes --no-deps

$(BENCH_READY): requirements/bench.lock requirements/torch-$(TORCH).lock
	@echo "setting up $(BENCH) with torch for $(TORCH) and the frameworks: takes minutes, once"
	@$(PYTHON) -m venv $(BENCH)
	@$(BENCH_PIP) -r requirements/bench.lock
	@$(BENCH_PIP) $(FIND_LINKS) -r requirements/torch-$(TORCH).lock
	@touch $@

.PHONY: bench-trainer
bench-trainer: $(BENCH_READY) ## Milliseconds per step beside a hand-written loop and other frameworks
	@PYTHONPATH=trainer $(BENCH)/bin/python -m tests.benchmarks.trainer --seed $(SEED)

.PHONY: bench-gpu
bench-gpu: $(READY) ## ResNet-50 and GPT-2 on a GPU beside a hand-written loop
	@$(BIN)/python -m tests.benchmarks.gpu --seed $(SEED)

.PHONY: format
format: $(READY) ## Format the code and mend what the linter can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: generate
generate: $(READY) ## Write the generated files: CRD, chart CRD, API reference
	$(BIN)/python -m tests.tools.generate

.PHONY: lock
lock: $(READY) ## Write the lock files
	$(BIN)/python requirements/lock.py --wheels "$(WHEELS)"

.PHONY: cluster
cluster: $(READY) ## Bring up a real two-node Kubernetes with the chart installed, and leave it running
	@$(BIN)/python -m tests.tools.demo --wheels "$(WHEELS)"

.PHONY: cluster-down
cluster-down: $(READY) ## End it
	$(HARNESS) down
