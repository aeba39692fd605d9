# Each target sets up what it needs: `make demo` and `make test` work on a fresh clone with Python 3.11 and make.

VENV := .venv
LOCK ?= cpu
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
MADE := $(VENV)/.made-from-$(LOCK)
BENCHMARKS = $(filter-out benchmarks/_% benchmarks/gpu.py,$(wildcard benchmarks/*.py))

.PHONY: help setup helm demo test lint format docs serve-docs bench clean

help: ## Print the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: $(MADE) ## Make .venv from the lock files (LOCK=cuda for CUDA)

$(MADE): scripts/setup.sh requirements/$(LOCK).txt requirements/dev.txt pyproject.toml
	@sh scripts/setup.sh "$(PYTHON)" $(VENV) $(LOCK)

helm: $(MADE) ## Put helm into .venv, for the tests of the chart (37 MB)
	$(VENV)/bin/python scripts/helm.py

demo: $(MADE) ## Train on MovieLens-100k, export, serve, and compare the answers
	$(VENV)/bin/emberline demo --output .demo

test: $(MADE) ## Run the tests, a file on each core (PYTEST_ARGS="-k name" for some of them)
	$(VENV)/bin/python -m pytest -q -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: $(MADE) ## Style, types, import layers, Dockerfile
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/hadolint Dockerfile

format: $(MADE) ## Rewrite the code in the project's style
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(MADE) ## Build the documentation site into build/site
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --quiet

serve-docs: $(MADE) # Show the site at http://127.0.0.1:8010, built anew when a page changes
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs serve --dev-addr 127.0.0.1:8010

bench: $(MADE) ## Run each benchmark (BENCH_ARGS=--quick for a short run)
	@set -e; for file in $(BENCHMARKS); do \
		echo "== $$file"; \
		$(VENV)/bin/python -m "benchmarks.$$(basename "$$file" .py)" $(BENCH_ARGS); \
	done

clean: ## Remove the environment, the demo's files and all caches
	rm -rf $(VENV) .demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
