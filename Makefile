# Two commands do everything on a fresh machine: `make demo` and `make test`. `make check` is what CI checks first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-fast test-matrix check format install clean

demo: $(INSTALLED)
	$(BIN)/meshtune run examples/demo.yaml

test: $(INSTALLED)
	sh tests/install_system_packages.sh
	$(BIN)/pytest --numprocesses 2 --dist loadgroup

# Without real training processes, servers, databases and clusters: for the inner loop.
test-fast: $(INSTALLED)
	$(BIN)/pytest --numprocesses 2 -m "not slow and not postgres and not slurm and not ray and not matrix"

# Every case of the trainer's correctness matrix (a plain test run takes a part), and its table: make test-matrix TABLE=...
TABLE ?= matrix.md
test-matrix: $(INSTALLED)
	$(BIN)/pytest -q -m matrix tests/trainer/test_matrix.py --matrix-table $(TABLE)
	cat $(TABLE)

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

install: $(INSTALLED)

# torch first and alone: its exact version keeps a resolver from choosing a build with CUDA.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "meshtune needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .meshtune build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
