# Everything the project needs is set up once in .venv by the first target that needs it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(shell cat pyproject.toml requirements.lock | cksum | cut -d' ' -f1)

# Sources of the main job; empty means the defaults. MAP names a report file's fields, GPU the GPU of launches
# whose file does not say; it is not taken from the environment, where the name may mean something else.
LAUNCHES ?=
DOCUMENTS ?=
MAP ?=
GPU :=
RUN_OPTIONS := $(if $(LAUNCHES),--launches $(LAUNCHES)) $(if $(DOCUMENTS),--documents $(DOCUMENTS)) $(if $(MAP),--map $(MAP)) $(if $(GPU),--gpu "$(GPU)")

.PHONY: help setup run test test-slow test-opencl test-prometheus lint suites ui clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## create .venv and install what the lock names, once

$(STAMP):
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"Python 3.11 to 3.13 is needed, $(PYTHON) is {v[0]}.{v[1]}; name another one: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv --help >/dev/null || { echo "$(PYTHON) lacks venv; install it (Debian: apt-get install python3-venv)"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable '.[dev]'
	@$(BIN)/python -c 'import lightgbm' || { echo "LightGBM needs the OpenMP runtime (Debian: apt-get install libgomp1)"; exit 2; }
	@rm -f $(VENV)/.installed-*
	@touch $@

run: setup ## the main job once: collect, validate, train, register, gate, monitor
	$(BIN)/warpgauge run $(RUN_OPTIONS)

test: setup lint ## lint, types, import rules and all tests but the slow ones
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not opencl and not gpu and not prometheus"

test-slow: setup ## the tests that take longer or download more
	$(BIN)/python -m pytest -m slow

HAS_OPENCL := $(BIN)/python -c 'import sys; from warpgauge.accelerate import find_opencl_devices as find; sys.exit(not find().devices)'

test-opencl: setup ## train on an OpenCL device; where there is none, install PoCL (needs root or sudo)
	@$(HAS_OPENCL) || { \
	  as_root=; test "$$(id -u)" = 0 || as_root=sudo; \
	  command -v apt-get >/dev/null && { test -z "$$as_root" || command -v sudo >/dev/null; } \
	    || { echo "no OpenCL device here, and installing one needs apt-get as root or sudo; install pocl-opencl-icd (or the GPU vendor's OpenCL driver) and run this again"; exit 2; }; \
	  echo "no OpenCL device here: installing PoCL, which computes on the CPU"; \
	  $$as_root apt-get update && $$as_root apt-get install --yes --no-install-recommends pocl-opencl-icd \
	    || { echo "pocl-opencl-icd could not be installed (see above), so nothing was tested"; exit 2; }; }
	@$(HAS_OPENCL) || { echo "OpenCL still shows no device, so nothing was tested; see: warpgauge doctor"; exit 2; }
	@echo "the first training compiles kernels, which takes about a minute"
	$(BIN)/python -m pytest -m opencl -s tests/latency/test_opencl.py

test-prometheus: setup ## the live source against a real Prometheus; where there is none, install it (needs root or sudo)
	@command -v prometheus >/dev/null || { \
	  as_root=; test "$$(id -u)" = 0 || as_root=sudo; \
	  command -v apt-get >/dev/null && { test -z "$$as_root" || command -v sudo >/dev/null; } \
	    || { echo "no prometheus here, and installing it needs apt-get as root or sudo; put the program on PATH and run this again"; exit 2; }; \
	  echo "no prometheus here: installing Debian's package"; \
	  $$as_root apt-get update && $$as_root apt-get install --yes --no-install-recommends prometheus \
	    || { echo "prometheus could not be installed (see above), so nothing was tested"; exit 2; }; }
	@echo "Prometheus scrapes for 40 seconds before anything is asked"
	$(BIN)/python -m pytest -m prometheus tests/prometheus

lint: setup ## ruff, mypy and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

suites: setup ## write expectations/suites/ and docs/data_dictionary.md anew from warpgauge/tables.py
	$(BIN)/python -c 'from tasks.validation import write_contract_files; write_contract_files()'

ui: setup ## open the MLflow UI on this project's store
	@uri="$$($(BIN)/python -c 'import sys; sys.tracebacklimit = 0; from tasks.tracking import tracking_uri; print(tracking_uri())')" || exit 2; \
	case "$$uri" in \
	http*) echo "open $$uri" ;; \
	*) exec $(BIN)/mlflow ui --backend-store-uri "$$uri" --workers 1 ;; \
	esac

clean: ## remove the environment and caches; tables and models stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
