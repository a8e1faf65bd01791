# make quickstart: collect, fit, export and decode on the embedded tiny target.   make test: the default test suite.
# make bench: every suite of comparisons on it, and their report.
# Both set up their own virtual environment and need nothing but Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
OUT ?= runs/quickstart
BENCH_OUT ?= runs/bench
SUITES ?= main oracle coverage temperature ablation budget length block transfer calibration
DRAFTERS ?= builtin:data/tiny-sdar-drafter builtin:data/tiny-sdar-drafter-bf16
TEMPERATURES ?= 0.5 1 2
GRAPHS ?= builtin:data/tiny-sdar-graphs/float32.json builtin:data/tiny-sdar-graphs/bfloat16.json
BIN = $(VENV)/bin

.PHONY: quickstart bench test slow lint clean

quickstart: $(VENV)/.train
	$(BIN)/spot-train quickstart --out $(OUT)

bench: $(VENV)/.train
	OMP_NUM_THREADS=1 $(BIN)/spot-train bench $(SUITES) --recipe builtin:recipes/tiny.yaml --out $(BENCH_OUT) \
	  --workers 2 $(DRAFTERS:%=--drafter %) $(GRAPHS:%=--graph %) $(TEMPERATURES:%=--temperature %)
	$(BIN)/spot-train report $(BENCH_OUT)/results.jsonl --out $(BENCH_OUT)/report

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
