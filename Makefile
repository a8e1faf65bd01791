# make quickstart: collect, fit, export and decode on the embedded tiny target.   make test: the default test suite.
# Both set up their own virtual environment and need nothing but Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
OUT ?= runs/quickstart
BIN = $(VENV)/bin

.PHONY: quickstart test slow lint clean

quickstart: $(VENV)/.train
	$(BIN)/spot-train quickstart --out $(OUT)

test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.train: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[train]'
	touch $@

$(VENV)/.dev: $(VENV)/.train
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs build dist
