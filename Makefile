# Two commands matter: `make demo` (set up, run the main job) and `make test`.  `make check` is what CI runs.
VENV := .venv
PY := $(VENV)/bin/python
# A machine with an NVIDIA driver also gets the packages that drive it and an assembler.
GPU := $(shell command -v nvidia-smi 2>/dev/null)
WITH_CUDA := [cuda,dev]
CORE_EXTRAS := $(if $(GPU),$(WITH_CUDA),)
DEV_EXTRAS := $(if $(GPU),$(WITH_CUDA),[dev])
# The tests and the site start Python some hundred times; without compiled modules each start takes twice as long.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test quick check lint types format mutate memcheck lowest newest site clean

demo: $(VENV)/.core
	@$(VENV)/bin/tilemma run examples/co/matmul_wgmma_2group.co --shape M=1024,N=1024,K=1024 --expect "mk,nk->mn" --plan

test: $(VENV)/.dev
	$(PY) -m pytest -n 2

# The front ends, the IR, its passes, and every construct of the language on every target: under a minute.
quick: $(VENV)/.dev
	$(PY) -m pytest -n 2 tests/test_layers.py tests/test_sparse.py tests/croqtile tests/ir tests/lang tests/layouts tests/language/test_constructs.py

check: $(VENV)/.dev lint types
	$(PY) -m pytest -n 2

mutate: $(VENV)/.dev
	$(PY) bench/mutate.py

# On a machine with a GPU and the CUDA toolkit.
memcheck: $(VENV)/.dev
	compute-sanitizer --tool memcheck --error-exitcode 1 $(PY) bench/memcheck.py

# Tests (or TESTS="...") with the oldest, and with the newest, of each dependency that pyproject.toml allows; an
# environment of their own, which pip fills from its index.
lowest newest: $(VENV)/.dev
	$(PY) bench/dependencies.py $@ $(TESTS)

# Pages of the docs, the gallery, the notebooks and the references in build/site/html; the build needs no network.
site: $(VENV)/.site
	NO_MKDOCS_2_WARNING=1 $(PY) -m dev.site

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check src dev tests examples bench
	$(VENV)/bin/ruff format --check src dev tests examples bench

types: $(VENV)/.dev
	$(VENV)/bin/mypy

format: $(VENV)/.dev
	$(VENV)/bin/ruff format src dev tests examples bench
	$(VENV)/bin/ruff check --fix src dev tests examples bench

$(VENV)/bin/python:
	@if command -v uv >/dev/null 2>&1; then uv venv --quiet $(VENV); else python3 -m venv $(VENV); fi

$(VENV)/.core: pyproject.toml | $(VENV)/bin/python
	@if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python $(PY) -e ".$(CORE_EXTRAS)"; \
	else $(PY) -m pip install --quiet --disable-pip-version-check -e ".$(CORE_EXTRAS)"; fi
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python $(PY) -e ".$(DEV_EXTRAS)"; \
	else $(PY) -m pip install --quiet --disable-pip-version-check -e ".$(DEV_EXTRAS)"; fi
	@touch $@ $(VENV)/.core

$(VENV)/.site: pyproject.toml | $(VENV)/bin/python
	@if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python $(PY) -e ".[site]"; \
	else $(PY) -m pip install --quiet --disable-pip-version-check -e ".[site]"; fi
	@touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
