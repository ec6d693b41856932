# Two commands for a newcomer: `make demo` and `make test`. Each makes the environment it needs.
PYTHON ?= python3
VENV   ?= .venv
# One torch, named first: a plain `torch` may bring several GB of CUDA packages with it.
TORCH  ?= torch==2.13.0
BIN    := $(VENV)/bin

export HF_HUB_OFFLINE ?= 1
export HF_DATASETS_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test test-slow test-systems test-nightly gpu lint types reference docs browser clean

demo: $(VENV)/.demo
	@$(BIN)/evalguard demo; code=$$?; \
	echo "evalguard demo: exit code $$code (1 = regressed, which is what this demo shows)"; \
	test $$code -eq 1

# worksteal: neighbours stay in one process, which makes what they share once.
test: $(VENV)/.test lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not nightly and not systems and not gpu" -n 2 --dist worksteal

# Ray takes 260 MB on the disk, which only the tests of clusters need. Slow tests and those of systems
# wait for processes and servers a fifth of their time: a third worker has the two cores meanwhile.
test-slow: $(VENV)/.test $(VENV)/.ray browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow and not nightly and not systems and not gpu" -n 3 --dist worksteal --durations 25

# One system a change, GGUF with llama.cpp; the others of docs/systems are nightly. Each has an
# environment of its own, made once and kept under EVALGUARD_SYSTEMS_CACHE. Half of making one would
# be compiling modules that no test imports; pip reads 0 as "do not".
test-systems: $(VENV)/.test
	PIP_NO_COMPILE=0 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/systems -m "not nightly and not gpu" -n 3 --dist loadgroup --durations 25

# Two hours on two cores with other work beside it: full-size simulations, endurance runs, the
# lowest and newest dependencies, all systems, with their environments kept; a third worker runs
# while others wait.
test-nightly: $(VENV)/.test $(VENV)/.ray browser
	PIP_NO_COMPILE=0 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "nightly and not gpu" -n 3 --dist worksteal

# All that runs on a GPU, in nine minutes at most, after the packages are there; what cannot be
# installed is said in the table. vLLM pins a torch of its own: GPU="--vllm-python PYTHON".
gpu: $(VENV)/.test
	-$(BIN)/python -m pip install --quiet --editable ".[test,torchao,fla]"
	$(BIN)/python -m benchmarks.gpu_speed --output build/gpu.md $(GPU)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(VENV)/.test
	$(BIN)/mypy

# Pages are tested in a browser. Root on a Debian-like system gets one; anybody else is told how to.
browser: $(VENV)/.test
	@if $(BIN)/python tests/report/find_browser.py >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium, for the tests of pages"; apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium >/dev/null; \
	else echo "no browser: tests of pages are skipped; for one: $(BIN)/playwright install chromium"; fi

# The pages of docs/reference, which a test holds to the code.
reference: $(VENV)/.docs
	$(BIN)/python -m documentation.reference

docs: reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "the site: build/site/index.html"

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	@touch $@ $(VENV)/.demo $(VENV)/.docs

$(VENV)/.ray: $(VENV)/.test pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[test,ray]"
	@touch $@

$(VENV)/.docs: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
