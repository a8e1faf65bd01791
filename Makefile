# make quickstart: collect, fit, export and decode on the embedded tiny target.   make test: the default test suite.
# make bench: every suite of comparisons on it, transfer to and from the second tiny target, and their report.
# make figures: tables of the docs that tests print.
# All set up their own virtual environment and need nothing but Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
OUT ?= runs/quickstart
BENCH_OUT ?= runs/bench
SUITES ?= main oracle coverage temperature ablation budget length calibration
DRAFTERS ?= builtin:data/tiny-sdar-drafter-one-call builtin:data/tiny-sdar-drafter-one-call-bf16
TEMPERATURES ?= 0.5 1 2
OTHER ?= builtin:data/tiny-llada2
OTHER_DRAFTERS ?= builtin:data/tiny-llada2-drafter-one-call builtin:data/tiny-llada2-drafter-one-call-bf16
SIBLING ?= data/tiny-sdar-b16
GRAPHS ?= builtin:data/tiny-sdar-graphs/float32.json builtin:data/tiny-sdar-graphs/bfloat16.json
TESTS ?= not slow and not figures
BIN = $(VENV)/bin

.PHONY: quickstart bench test slow figures lint clean

quickstart: $(VENV)/.train
	$(BIN)/spot-train quickstart --out $(OUT)

BENCH = OMP_NUM_THREADS=1 $(BIN)/spot-train bench
HERE = --recipe builtin:recipes/tiny.yaml --out $(BENCH_OUT) --workers 2 $(DRAFTERS:%=--drafter %)

bench: $(VENV)/.train
	$(BENCH) $(SUITES) $(HERE) $(GRAPHS:%=--graph %) $(TEMPERATURES:%=--temperature %)
	$(BENCH) block $(HERE) $(GRAPHS:%=--graph %) --target builtin:data/tiny-sdar --target $(SIBLING)
	$(BENCH) transfer $(HERE) $(OTHER_DRAFTERS:%=--drafter %) --target builtin:data/tiny-sdar --target $(OTHER)
	$(BIN)/spot-train report $(BENCH_OUT) --out $(BENCH_OUT)/report

test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "$(TESTS)"

slow: TESTS = slow
slow: test

figures: $(VENV)/.dev
	$(BIN)/python -m pytest -q -s -m figures

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
