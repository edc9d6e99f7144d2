# Every target creates .venv if it is missing.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: setup demo test slow lint format types check wheel bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/unforced compare streaming_g2p --jobs 2 --root runs
	$(BIN)/unforced plot changes runs/streaming_g2p --output runs/streaming_g2p/changes.svg

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile

slow: $(READY)
	$(BIN)/pytest -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/mypy

check: lint types test

wheel: $(READY)
	$(BIN)/python -m build --wheel --outdir dist

bench: $(READY)
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache
