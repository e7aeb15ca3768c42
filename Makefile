# make eval: evaluate the shipped checkpoint.   make test: the whole test suite.
# Both make their own environment in .venv first; PYTHON=python3.12 picks another interpreter.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: eval test lint types check bench inspect clean engines

eval: $(VENV)/.run
	$(BIN)/python -m pytest evals/test_arithmetic.py --model=models/tiny-math

# Fast tests first; each part in a process of its own, so that none leans on what another imported.
test: $(VENV)/.dev
	$(BIN)/python -m pytest tests/unit tests/report
	$(BIN)/python -m pytest tests/plugin tests/proxy
	$(BIN)/python -m pytest tests/engines tests/e2e
	$(BIN)/python -m pytest tests/clusters

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

check: lint types test

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run_all.py

# The Inspect framework, in an environment of its own: a test has it read the logs that we write.
inspect: .venv-inspect/.done

.venv-inspect/.done:
	$(PYTHON) -m venv .venv-inspect
	.venv-inspect/bin/python -m pip --disable-pip-version-check -q install inspect-ai pandas pyarrow
	@touch $@

# Real engines on a CPU, outside the checkout; the tests use them where they are.
ENGINES ?= $(HOME)/.cache/pytest-areal-eval/engines

engines:
	benchmarks/make_engines.sh $(ENGINES) vllm sglang

$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@# Without a GPU the CPU build: the default one for Linux brings gigabytes of CUDA libraries.
	@if nvidia-smi -L >/dev/null 2>&1; then \
	  echo "installing torch"; $(PIP) install 'torch>=2.5'; \
	else \
	  echo "installing torch (CPU build)"; \
	  $(PIP) install 'torch==2.13.0+cpu' 2>/dev/null \
	  || { $(PIP) install uv && $(BIN)/uv pip install -q --python $(BIN)/python --torch-backend=cpu 'torch>=2.5'; }; \
	fi
	@touch $@

$(VENV)/.run: $(VENV)/.torch pyproject.toml
	@echo "installing pytest-areal-eval"
	@$(PIP) install -e '.[hf]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run pyproject.toml
	@echo "installing what the tests need"
	@$(PIP) install -e '.[hf,dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
