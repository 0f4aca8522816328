# Two commands do everything on a fresh machine:  make train   and   make test
# Everything is installed into .venv from constraints.txt; nothing is installed twice.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

PEERS_VENV  := .venv-peers
PEERS_READY := $(PEERS_VENV)/.ready
PEERS_PIP    = $(PEERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-peers.txt

VLLM_VENV  := .venv-vllm
VLLM_READY := $(VLLM_VENV)/.ready
VLLM_PIP    = $(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

.PHONY: setup
setup: $(READY) ## Create .venv and install the package with its development tools

# torch comes first and pinned: asked for by another package, an unpinned torch would bring gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: Python 3.11 or newer is needed; try: make PYTHON=python3.12 setup" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

.PHONY: train
train: setup ## Set up, then run the default training recipe
	$(BIN)/openmanus-rl train

# The pages are tested in Debian's Chromium. Where it cannot be installed, those tests are skipped and say so.
.PHONY: browser
browser: ## Install Chromium for the tests of web pages (Debian, as root)
	@command -v chromium chromium-browser google-chrome >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
			|| echo "warning: chromium could not be installed: tests of web pages will be skipped" >&2; \
	else \
		echo "warning: there is no chromium: tests of web pages will be skipped (Debian: apt-get install chromium)" >&2; \
	fi

.PHONY: test
test: setup browser ## Set up, then run the whole test suite
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not vllm"

.PHONY: test-slow
test-slow: setup browser ## Run the longer proofs as well
	FUZZ_FACTOR=5 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not vllm"

# atheris exists for Linux only. Without it half of the work is not done, so it is an error and not a warning.
FUZZ_FACTOR  ?= 50
FUZZ_SECONDS ?= 60
.PHONY: fuzz
fuzz: setup ## Try many more hostile inputs than `make test` does, others each time
	FUZZ_FACTOR=$(FUZZ_FACTOR) $(BIN)/python -m pytest -n 2 --timeout 7200 tests/hostile tests/agent/test_chat_template.py
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[fuzz]' \
		|| { echo "error: atheris cannot be installed here (it exists for Linux only), so no reader was fuzzed with it" >&2; exit 1; }
	@for target in $$($(BIN)/python -m tests.hostile.atheris_targets); do \
		echo "atheris: $$target"; \
		$(BIN)/python -m tests.hostile.atheris_targets $$target -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096 -timeout=15; \
	done

# vLLM's CPU build wants other versions of web packages than ours, and asks for torch packages that do not exist for the
# CPU: so it has an environment of its own, and its requirements are listed in constraints-vllm.txt, without those.
.PHONY: vllm
vllm: $(VLLM_READY) ## Create .venv-vllm, with vLLM for machines without a GPU

$(VLLM_READY): pyproject.toml constraints-vllm.txt
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) --constraint constraints-vllm.txt torch
	$(VLLM_PIP) --no-deps --requirement constraints-vllm.txt
	$(VLLM_PIP) --no-deps --editable .
	@touch $@

.PHONY: test-vllm
test-vllm: $(VLLM_READY) ## Install vLLM (minutes), then run the tests with it
	$(VLLM_VENV)/bin/python -m pytest -W default -m vllm tests/*/test_vllm_*.py

.PHONY: lint
lint: setup ## Format check, lint, import rules, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

.PHONY: format
format: setup ## Format the code and apply safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What the benchmarks compare with, and this package beside it; again torch comes first.
.PHONY: peers
peers: $(PEERS_READY) ## Create .venv-peers, with TRL for the benchmarks

$(PEERS_READY): pyproject.toml constraints-peers.txt
	test -x $(PEERS_VENV)/bin/python || $(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_PIP) torch
	$(PEERS_PIP) trl datasets accelerate --editable .
	@touch $@

.PHONY: bench
bench: setup peers vllm ## Run the benchmarks, beside TRL and vLLM, and write the pages of docs/ that show their numbers
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.scaling --write
	$(VLLM_VENV)/bin/python -m benchmarks.vllm

.PHONY: docs
docs: setup ## Build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: lock
lock: setup ## Rewrite constraints.txt from what is installed in .venv
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '@' | sed 's/+cpu$$//' | sort -f > constraints.txt

.PHONY: clean
clean: ## Remove what the tools left behind (not .venv, not runs)
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz .import_linter_cache build dist site
