# The project's front door. `make help` lists the commands.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Folder with a build of torch for machines without a GPU. Without it pip installs torch from the
# registry, with its CUDA libraries.
WHEELS ?= ../shared/wheels
SEED ?= 0
# Address of the source, for the label of the images.
SOURCE ?= unknown
# Place of the images operator and trainer, for install.yaml.
REGISTRY ?= registry.example/ddp-trainer
export DDP_SEED = $(SEED)
# Without bytecode in the cache each process of the tests compiles the product again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
TORCH := $(if $(wildcard $(WHEELS)/torch-2.13.0+cpu-*),cpu,cuda)
FIND_LINKS := $(if $(filter cpu,$(TORCH)),--find-links "$(WHEELS)")
READY := $(VENV)/.ready-$(TORCH)
# Of pip's output only the names of what it downloads, so that the first setup is not silent.
PIP := $(BIN)/pip install --disable-pip-version-check --progress-bar off
SHOW := { grep --line-buffered -E '^ *(Downloading|Installing)' || true; }
HARNESS := $(BIN)/python -m tests.harness

$(READY): requirements/dev.lock requirements/build.lock requirements/torch-$(TORCH).lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, got " + sys.version.split()[0])'
	@echo "setting up $(VENV) with torch for $(TORCH): takes minutes, once"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes -r requirements/build.lock -r requirements/dev.lock | $(SHOW)
	@$(PIP) --require-hashes --no-deps $(FIND_LINKS) -r requirements/torch-$(TORCH).lock | $(SHOW)
	@$(PIP) --no-deps --no-build-isolation -e . | $(SHOW)
	@touch $@

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

.PHONY: setup
setup: $(READY) ## Create the virtual environment

.PHONY: run
run: $(READY) ## Train the sample on this machine: 2 nodes x 2 processes, handwritten digits
	@$(BIN)/ddpjob run manifests/samples/digits.yaml

.PHONY: test
test: $(READY) ## Run all that CI runs: checks, unit tests, a real API server, a real two-node cluster
	@if [ "$$(uname -s)" = Linux ] && [ "$$(id -u)" = 0 ]; then \
	  exec $(BIN)/python -m tools.run_all; \
	else \
	  $(MAKE) check; \
	  $(BIN)/pytest -m 'not api and not cluster and not sweep'; \
	  echo "make test: the API and cluster tests did not run: they need Linux and root" >&2; exit 1; \
	fi

.PHONY: test-fast
test-fast: $(READY) ## Run the fast tests, which need neither root nor a cluster
	$(BIN)/pytest -q -n auto --maxprocesses 4 --dist worksteal --durations=15 \
	  -m 'not api and not cluster and not sweep and not slow'

.PHONY: test-tasks
test-tasks: $(READY) ## Run twelve users' tasks through check, verify, export and a resume after SIGKILL
	$(BIN)/pytest -q tests/trainer/user_tasks

.PHONY: check
check: $(READY) ## Check lint, types, import layers and drift of generated files
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy tests tools bench
	$(BIN)/lint-imports
	$(BIN)/hadolint --failure-threshold style Dockerfile manifests/samples/own-image/Dockerfile
	$(BIN)/python -m tools.generate --check

.PHONY: lint-chart
lint-chart: $(READY) ## Check the chart and the objects of a job with kube-score (make test does, too)
	$(BIN)/pytest -q tests/chart/test_kube_score.py

.PHONY: faults
faults: $(READY) ## Play every known fault, measure recoveries, kill 30 times (PART=torch|gpus|api|cluster|size|rest|recovery|kills)
	@$(BIN)/python -m tests.fault_player $(if $(PART),--part $(PART)) --wheels "$(WHEELS)" --seed $(SEED)

.PHONY: torture
torture: $(READY) ## Try checkpoints and records to destruction: kills, damage, failing volumes (PART=interruptions|flips|kills …)
	@$(BIN)/python -m tests.torture $(if $(PART),--part $(PART)) --seed $(SEED)

.PHONY: bench-recovery
bench-recovery: $(READY) ## Measure seconds from a fault to the next update, beside torchrun alone, on two real nodes
	@$(BIN)/python -m bench.recovery --wheels "$(WHEELS)" --seed $(SEED)

.PHONY: bench-resizes
bench-resizes: $(READY) ## Measure seconds from the decision to change the size of a job to its next update, on two real nodes
	@$(BIN)/python -m bench.resizes --wheels "$(WHEELS)"

# The compared frameworks have a separate environment, so that the product never imports them.
BENCH := .venv-bench
BENCH_READY := $(BENCH)/.ready-$(TORCH)
BENCH_PIP := $(BENCH)/bin/pip install -q --disable-pip-version-check --require-hashes --no-deps

$(BENCH_READY): requirements/bench.lock requirements/torch-$(TORCH).lock
	@echo "setting up $(BENCH) with torch for $(TORCH) and the frameworks: takes minutes, once"
	@$(PYTHON) -m venv $(BENCH)
	@$(BENCH_PIP) -r requirements/bench.lock
	@$(BENCH_PIP) $(FIND_LINKS) -r requirements/torch-$(TORCH).lock
	@touch $@

# The generator of the documentation has a separate environment, because the product never imports it.
DOCS := .venv-docs
DOCS_READY := $(DOCS)/.ready

$(DOCS_READY): requirements/docs.lock
	@echo "setting up $(DOCS): takes seconds, once"
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/pip install -q --disable-pip-version-check --require-hashes --no-deps -r requirements/docs.lock
	@touch $@

.PHONY: docs
docs: $(DOCS_READY) ## Build the documentation site into dist/site; a warning or a dead link fails
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet --config-file docs/mkdocs.yml
	@echo "dist/site/index.html"

.PHONY: docs-serve
docs-serve: $(DOCS_READY) ## Serve the documentation site on this machine, with reloads
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs serve --config-file docs/mkdocs.yml

.PHONY: bench-trainer
bench-trainer: $(BENCH_READY) ## Measure milliseconds per step beside a hand-written loop and other frameworks
	@PYTHONPATH=trainer $(BENCH)/bin/python -m bench.trainer --seed $(SEED)

.PHONY: bench-zero1
bench-zero1: $(READY) ## Measure an update with zero1 beside torch's ZeroRedundancyOptimizer
	@$(BIN)/python -m bench.zero1 --seed $(SEED)

.PHONY: bench-checkpoint
bench-checkpoint: $(READY) ## Measure the throughput that saves cost, their memory and loads, beside torch.save and DCP
	@$(BIN)/python -m bench.checkpoint --seed $(SEED)

.PHONY: bench-scale
bench-scale: $(READY) ## Measure the operator with 1,000 pods, 1,000 jobs, 9,999 pods, and beside its peers
	@$(BIN)/python -m bench.scale

.PHONY: bench-observation
bench-observation: $(READY) ## Measure what observation costs: an update, a scrape of an agent and of the operator
	@$(BIN)/python -m bench.observation

.PHONY: bench-gpu
bench-gpu: $(READY) ## Measure ResNet-50 and GPT-2 on a GPU beside a hand-written loop
	@$(BIN)/python -m bench.gpu --seed $(SEED)

.PHONY: format
format: $(READY) ## Format the code and apply the automatic fixes of the linter
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: generate
generate: $(READY) ## Write the generated files: CRD, rules, dashboards, references
	$(BIN)/python -m tools.generate

.PHONY: lock
lock: $(READY) ## Write the lock files (UPGRADE=1 takes the newest versions)
	$(BIN)/python requirements/lock.py --wheels "$(WHEELS)" $(if $(UPGRADE),--upgrade)

.PHONY: images
images: $(READY) ## Build both images into dist/ and compare their sizes with the goals (Linux, root)
	@$(BIN)/python -m tools.release --wheels "$(WHEELS)" --source "$(SOURCE)"

.PHONY: release
release: $(READY) ## Write images, bills of materials, chart, install.yaml and checksums to dist/ (SOURCE=, REGISTRY=)
	@$(BIN)/python -m tools.release --all --wheels "$(WHEELS)" --source "$(SOURCE)" --registry "$(REGISTRY)"

.PHONY: manifest
manifest: $(READY) ## Write dist/install.yaml, the chart for kubectl apply (REGISTRY=place of the images; needs Go once)
	@$(BIN)/python -m tools.install_manifest --registry "$(REGISTRY)"

.PHONY: cluster
cluster: $(READY) ## Start a real two-node Kubernetes with the chart installed, and leave it running
	@$(BIN)/python -m tools.demo --wheels "$(WHEELS)"

.PHONY: cluster-down
cluster-down: $(READY) ## Stop that Kubernetes
	$(HARNESS) down
