# One command each; every target sets up first what it needs, in .venv beside this file.
#   make demo PYTHON=python3.12        another interpreter (3.10 to 3.13)
#   make demo VENV=/somewhere/else     another environment
#   make demo TORCH_INDEX=ADDRESS      take torch from this index, to spare a machine without a GPU the CUDA build

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# two processes with one thread each
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2
NBVAL := --dist loadfile --nbval --nbval-sanitize-with tests/notebooks/sanitize.cfg
PIP := $(BIN)/python -m pip install --quiet -c constraints.txt

.PHONY: demo test test-notebooks test-notebooks-bare test-nbgrader course lab lint setup clean

demo: setup
	$(BIN)/minispec demo

test: setup $(VENV)/course.done $(VENV)/test.done
	$(PYTEST) --dist worksteal

test-notebooks: setup $(VENV)/course.done $(VENV)/test.done
	$(BIN)/python tools/build_course.py --check
	$(PYTEST) --dist loadfile tests/notebooks
	$(PYTEST) $(NBVAL) notebooks solutions

# nbgrader's own run of an exercise, against `minispec grade`; it brings a database, so it is installed only here
test-nbgrader: setup $(VENV)/course.done $(VENV)/test.done
	$(PIP) nbgrader
	$(BIN)/python -m pytest tests/notebooks/test_nbgrader.py

# The same outputs without a GPU, on one thread, without bfloat16 instructions and without ipywidgets?
test-notebooks-bare: export CUDA_VISIBLE_DEVICES =
test-notebooks-bare: export ATEN_CPU_CAPABILITY = avx2
test-notebooks-bare: export ONEDNN_MAX_CPU_ISA = AVX2
test-notebooks-bare: export PYTHONPATH = $(CURDIR)/tests/notebooks/without_widgets
test-notebooks-bare: setup $(VENV)/course.done $(VENV)/test.done
	$(PYTEST) $(NBVAL) notebooks

course: setup $(VENV)/course.done $(VENV)/test.done
	$(BIN)/python tools/build_course.py --run

lab: setup $(VENV)/course.done
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb

lint: $(VENV)/course.done $(VENV)/test.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

setup: $(VENV)/minispec.done
	$(BIN)/minispec fetch

$(VENV)/minispec.done: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once, a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "minispec needs Python 3.10 to 3.13; say which: make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@$(PIP) -e .
	@touch $@

$(VENV)/%.done: $(VENV)/minispec.done
	@echo "adding what '$*' needs"
	@$(PIP) -e ".[$*]"
	@touch $@

clean:
	rm -rf $(VENV)
