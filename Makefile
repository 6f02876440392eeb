# Two commands do everything on a fresh machine: `make run` and `make test`.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# CuPy and NVRTC for the CUDA that the driver supports, 12 or 13; without a driver none for `make run`,
# and those of 12 for the tests: NVRTC compiles without a GPU.
# torch must fit the driver as well: its default wheels are for the newest CUDA. With an older
# driver: make run TORCH_INDEX=https://download.pytorch.org/whl/cu126
# Without a driver PyTorch's CPU wheel comes first: the default one brings gigabytes of CUDA on Linux.
# Where that index cannot be reached, the default one is taken all the same.
CUDA := $(shell nvidia-smi 2>/dev/null | \
	sed -n 's/.*CUDA [A-Za-z ]*Version: *\([0-9][0-9]*\).*/\1/p' | head -n 1)
WHEELS := $(if $(CUDA),$(if $(filter 12,$(CUDA)),cuda12,cuda13))
INSTALL := $(PIP) install -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
CPU_INDEX := https://download.pytorch.org/whl/cpu
CPU_TORCH := $(PIP) install --no-deps --retries 1 --timeout 15 --index-url $(CPU_INDEX) -c constraints.txt torch \
	|| echo "no CPU wheel of torch from $(CPU_INDEX): the default one is installed"

# A link to a page or a heading that is not there is an error.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Without Python's cache each of the many processes of a test run compiles all its modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test check format site soak test-gpu bench clean

run: $(VENV)/.runtime  ## tune the flagship kernel: on the GPU if there is one, else on the CPU
	$(BIN)/evotune run

test: $(VENV)/.development  ## tests that need no GPU; of alike cases a few
	$(BIN)/python -m pytest -m "not gpu and not soak" -n 2 --dist worksteal

check: $(VENV)/.development  ## style, types, which package may import which, links of the pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(SITE) --site-dir $(VENV)/site

format: $(VENV)/.development
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

site: $(VENV)/.development  ## the documentation as a site, in site/
	$(SITE)

soak: $(VENV)/.development  ## all other tests without a GPU, hours; figures of campaigns go to benchmarks/results/survival.json
	$(BIN)/python -m pytest -m soak

test-gpu: $(VENV)/.development  ## tests that need a CUDA GPU
	$(BIN)/python -m pytest -m gpu

bench: $(VENV)/.development  ## the framework's own cost
	$(BIN)/python benchmarks/overhead.py

$(VENV)/.runtime: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(if $(CUDA)$(TORCH_INDEX),,$(CPU_TORCH))
	$(INSTALL) -e '.$(if $(WHEELS),[$(WHEELS)])'
	touch $@

$(VENV)/.development: $(VENV)/.runtime
	$(INSTALL) -e '.[dev,docs,$(or $(WHEELS),cuda12)]'
	touch $@

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
