# From a fresh clone, with Python 3.11+ and make only:
#   make lab                    JupyterLab on the start notebook
#   make lab SIMULATE=8xh100    the same on a simulated machine, labelled so
#   make test                   everything is checked
#   make test-frameworks        memory limits in the real PyTorch, TensorFlow, JAX, CuPy, RMM, Numba ... (1.2 GB)
PYTHON ?= python3
SIMULATE ?=
VENV := .venv
BIN := $(VENV)/bin
FRAMEWORKS := $(VENV)/frameworks
FRAMEWORK_PACKAGES := tensorflow-cpu jax cupy-cuda12x rmm-cu12 numba-cuda onnxruntime xgboost-cpu
SOURCES := $(shell find frontend dashboards gpulab/jupyter/jupyter_server_config.d -path frontend/node_modules -prune -o -type f -print) pyproject.toml constraints.txt

.PHONY: lab test test-frameworks check bench clean

lab: $(VENV)/ready
	$(BIN)/gpulab lab $(if $(SIMULATE),--simulate $(SIMULATE))

test: $(VENV)/ready-test check
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-frameworks: $(VENV)/ready-test $(FRAMEWORKS)/ready
	$(FRAMEWORKS)/bin/python -m pytest -m frameworks tests/limits

check: $(VENV)/ready-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/ready-test
	$(BIN)/python -m benchmarks

# Made anew only when the front end or what is installed has changed.
$(VENV)/ready: $(SOURCES) | $(VENV)/bin/python
	@echo 'Setting up gpulab in $(VENV); the first time takes a minute or two.'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	$(BIN)/gpulab kernel install --sys-prefix
	touch $@

$(VENV)/ready-test: $(SOURCES) | $(VENV)/bin/python
	@echo 'Setting up gpulab and its tests in $(VENV); the first time takes a minute or two.'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	$(BIN)/gpulab kernel install --sys-prefix
	touch $(VENV)/ready $@

# CPU builds, in an environment of their own that sees the tests' one; what pip does not have is left out.
# PyTorch's CPU build is not everywhere: with its exact name no build of several GB can come in its place.
$(FRAMEWORKS)/ready: constraints-frameworks.txt | $(VENV)/ready-test
	@echo 'Setting up the frameworks in $(FRAMEWORKS); this takes some minutes.'
	$(BIN)/python -m venv --clear $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --only-binary :all: --constraint constraints-frameworks.txt $(FRAMEWORK_PACKAGES)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --only-binary :all: --constraint constraints-frameworks.txt torch || \
	  echo 'PyTorch is left out: pip finds no CPU build of it; name a place that has one in PIP_FIND_LINKS.'
	$(BIN)/python -c 'import sysconfig, os; print(sysconfig.get_path("purelib"), os.getcwd(), sep="\n")' > \
	  "$$($(FRAMEWORKS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gpulab-tests.pth"
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gpulab needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist gpulab/static frontend/node_modules
