# Two commands do everything on a fresh machine: `make run` and `make test`.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: run test check format soak test-gpu bench clean

run: $(VENV)/.runtime  ## tune the flagship kernel: on the GPU if there is one, else on the CPU
	$(BIN)/evotune run

test: $(VENV)/.development  ## every test that needs no GPU
	$(BIN)/python -m pytest -m "not gpu and not soak" -n 2

check: $(VENV)/.development  ## style, types, and which package may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.development
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

soak: $(VENV)/.development  ## long campaigns
	$(BIN)/python -m pytest -m soak

test-gpu: $(VENV)/.development  ## tests that need a CUDA GPU
	$(BIN)/python -m pytest -m gpu

bench: $(VENV)/.development  ## the framework's own cost
	$(BIN)/python benchmarks/overhead.py

$(VENV)/.runtime: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/.development: $(VENV)/.runtime
	$(PIP) install -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
