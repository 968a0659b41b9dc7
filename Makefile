# From a fresh clone, with Python 3.11+ and make only:
#   make lab                    JupyterLab on the start notebook
#   make lab SIMULATE=8xh100    the same on a simulated machine, labelled so
#   make test                   everything is checked
PYTHON ?= python3
SIMULATE ?=
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find frontend dashboards gpulab/jupyter/jupyter_server_config.d -path frontend/node_modules -prune -o -type f -print) pyproject.toml constraints.txt

.PHONY: lab test check bench clean

lab: $(VENV)/ready
	$(BIN)/gpulab lab $(if $(SIMULATE),--simulate $(SIMULATE))

test: $(VENV)/ready-test check
	$(BIN)/python -m pytest

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

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gpulab needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist gpulab/static frontend/node_modules
