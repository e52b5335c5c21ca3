# Everything a newcomer needs: `make demo` and `make test`. Each sets up what it needs by itself.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
# atheris has an environment of its own: it is for this one purpose, and needs nothing of the rest but msgspec and numpy.
FUZZ   := .fuzz-venv
FUZZ_SECONDS ?= 60

.PHONY: help demo test check bench chaos fuzz data clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    train Fashion-MNIST on two workers, kill one, compare the weights with an undisturbed run"
	@echo "make test    all tests"
	@echo "make check   ruff, mypy, import-linter, file sizes"
	@echo "make bench   the benchmarks, side by side with their peers"
	@echo "make chaos   long random schedules of kills, pauses, joins and leaves"
	@echo "make fuzz    the property tests with many more examples, and what reads from the network under atheris"
	@echo "make clean   remove what the others made (and the virtual environment)"

# Made anew only when pyproject.toml changes.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "holdfast needs Python 3.11 or newer; say which: make PYTHON=python3.12 ..."; exit 1; }
	@echo "setting up $(VENV) (the first time this fetches torch: some minutes)"
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV) \
		|| { rm -rf $(VENV); echo "cannot make a virtual environment; on Debian: apt install python3-venv"; exit 1; }
	@$(PY) -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@

data:
	@tools/fashion_mnist_data

demo: $(STAMP) data
	@$(PY) examples/demo.py

test: $(STAMP) data
	@$(PY) tools/run_tests.py

check: $(STAMP)
	@status=0; \
	echo "-- ruff";          $(PY) -m ruff check --output-format=concise . || status=1; \
	echo "-- mypy";          $(PY) -m mypy || status=1; \
	echo "-- import-linter"; $(VENV)/bin/lint-imports --no-logo || status=1; \
	echo "-- file sizes";    $(PY) tools/file_sizes.py src tests || status=1; \
	exit $$status

bench: $(STAMP) data
	@$(PY) -m benchmarks

chaos: $(STAMP) data
	@$(PY) -m pytest -m chaos -o faulthandler_timeout=3600
	@$(PY) -m pytest -n 2 -m "not process and not chaos" -p tests.late_threads tests/unit tests/contract

fuzz: $(STAMP) $(FUZZ)/.installed
	@$(PY) -m pytest -n 2 -m "hypothesis and not chaos" --hypothesis-profile=fuzz
	@for target in frames requests; do \
		echo "-- fuzz_$$target"; \
		PYTHONPATH=src $(FUZZ)/bin/python tests/fuzz/fuzz_$$target.py -max_total_time=$(FUZZ_SECONDS) -max_len=20000 \
			-print_final_stats=1 -artifact_prefix=$(FUZZ)/found- 2> $(FUZZ)/log \
			&& tail -n 6 $(FUZZ)/log || { tail -n 40 $(FUZZ)/log; exit 1; }; \
	done

$(FUZZ)/.installed: Makefile
	@[ -x $(FUZZ)/bin/python ] || $(PYTHON) -m venv $(FUZZ)
	@$(FUZZ)/bin/python -m pip install -qq --disable-pip-version-check 'atheris>=3.0' 'msgspec>=0.19' 'numpy>=1.26'
	@touch $@

clean:
	@rm -rf $(VENV) $(FUZZ) build dist runs src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
