# Two commands for a newcomer: `make demo` and `make test`. Everything they need goes into ./.venv.
PYTHON ?= python3
VENV   ?= .venv
# extra arguments for pip, e.g. the index of a CPU-only torch build
PIP_ARGS ?=
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-ray test-gpu lint clean

help:
	@echo "make demo   run the main job on real human DNA (about eight minutes on two cores)"
	@echo "make test   lint, types and all tests"
	@echo "make test-ray  train on a real local Ray cluster (installs the extra ray, half a gigabyte)"
	@echo "make test-gpu  kernel tests and figures on an NVIDIA GPU (with the packages of the machine: GPU_PYTHON)"
	@echo "make setup  only create $(VENV) and install genoctx with its development tools"
	@echo "make clean  remove $(VENV) and the demo's output"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "genoctx needs Python 3.11 or newer; try: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "Python's venv module is missing; on Debian or Ubuntu: apt install python3-venv" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	PATH="$(abspath $(BIN)):$$PATH" bash data/demo.sh

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2

test-ray: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[ray]'
	$(BIN)/python -m pytest tests/ray

# on a GPU machine torch and triton are there already: its own python, nothing installed; figures also where a test failed
GPU_PYTHON ?= python3
test-gpu:
	@$(GPU_PYTHON) -c 'import torch, triton, numpy, safetensors, pydantic, typer, rich, pytest, hypothesis' || \
	  { echo "test-gpu needs, beside torch and triton: pip install numpy safetensors pydantic typer rich pytest hypothesis" >&2; exit 2; }
	PYTHONPATH="$(CURDIR):$(CURDIR)/kernels" GENOCTX_TEST_DEVICE=cuda $(GPU_PYTHON) -m pytest tests/gpu; tests=$$?; \
	PYTHONPATH="$(CURDIR):$(CURDIR)/kernels" $(GPU_PYTHON) -m genoctx bench gpu && exit $$tests

clean:
	rm -rf $(VENV) demo
