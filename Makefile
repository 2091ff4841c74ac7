# Every command of the project. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MEMBERS := $(patsubst %/pyproject.toml,%,$(wildcard libs/*/pyproject.toml services/*/pyproject.toml tools/*/pyproject.toml))
SOURCES := $(addsuffix /src,$(MEMBERS))
TESTS := $(addsuffix /tests,$(MEMBERS)) tests benchmarks
PYTEST := $(BIN)/python -m pytest

.PHONY: help install lock gen gen-check fmt lint types arch unit integration test bench demo dev check clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

install: $(VENV)/.installed ## create .venv with the pinned dependencies and every package, editable

$(VENV)/.installed: requirements.lock $(addsuffix /pyproject.toml,$(MEMBERS)) scripts/install.sh
	@PYTHON=$(PYTHON) bash scripts/install.sh $(VENV) $(MEMBERS)
	@touch $@

lock: ## resolve requirements.lock anew from the pyproject files
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 --group dev \
	  pyproject.toml $(addsuffix /pyproject.toml,$(MEMBERS)) \
	  $(addprefix --no-emit-package noetl-,core contracts adapters servicekit testkit api planner projector outbox-publisher reaper worker cli) \
	  -o requirements.lock

gen: install ## generate the gRPC code from protos/
	@bash scripts/gen.sh
