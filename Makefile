# make compare   the main job: GPT-2 124M by every strategy on one drive
# make test      formatting, types and all tests at small counts
# make docs      the pages of docs/ as HTML; a warning is an error
# make soak      the same tests at full counts: those that do more there, the others are in `test`
# Each target sets up .venv by itself; TRAIN=1 adds torch, which the tests against it need.

# Without stored bytecode, every command that a test starts compiles a few hundred modules again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
TRAIN ?=
VENV := .venv
BIN := $(VENV)/bin
comma := ,
EXTRAS := test$(if $(TRAIN),$(comma)train)

# Stamp files; the second is another where torch is wanted.
INSTALLED := $(VENV)/installed
TESTS := $(VENV)/tests$(if $(TRAIN),-train)

# A file's tests stay together, as what they are built on is; at full counts, those of a few files
# do (tests/conftest.py), and the others go one by one. At small counts a third process computes
# while tests of live programs wait.
JOBS ?= 2
SMALL_JOBS ?= 3
PYTEST := $(BIN)/python -m pytest --benchmark-disable -q

.PHONY: compare test pytest soak docs check clean compiled required
.DELETE_ON_ERROR:

compare: $(INSTALLED)
	$(BIN)/ondie compare gpt2-124m --device csd-pe --steps 1 --no-swing --out results/gpt2-csd-pe

# Types and pages are checked while the tests run: these wait for each other at times.
test: $(TESTS)
	@$(MAKE) -j3 --no-print-directory pytest check docs

pytest: $(TESTS)
	$(PYTEST) -n $(SMALL_JOBS) --dist loadfile

soak: $(TESTS)
	$(PYTEST) -n $(JOBS) -m counted --full --timeout 1800

check: $(TESTS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(TESTS)
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The stamps depend on what is compiled and declared; Python files are used in place. One pip
# compiles csrc/ while the other installs what is required. Bytecode of a package is stored when
# it is imported: most modules of most packages never are.
BUILD := pyproject.toml $(wildcard csrc/*)
INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check
# Requirements of the package and of the extras that are named, one a line.
LIST := import sys, tomllib; \
    project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
    extras = (project["optional-dependencies"][name] for name in sys.argv[1:]); \
    print(*project["dependencies"], *sum(extras, []), sep="\n")

$(INSTALLED): $(BUILD) | $(BIN)/python
	@$(MAKE) -j2 --no-print-directory compiled required EXTRAS=
	@touch $@

$(TESTS): $(BUILD) | $(BIN)/python
	@$(MAKE) -j2 --no-print-directory compiled required
	@mkdir -p $(VENV)/typing/ondie
	@for room in kernels traces emu; do ln -sfn ../../../$$room $(VENV)/typing/ondie/$$room; done
	@for name in __init__.py py.typed; do ln -sfn ../../../emu/api/$$name $(VENV)/typing/ondie/$$name; done
	@touch $@ $(INSTALLED)

compiled:
	$(INSTALL) --no-deps -e .

required:
	$(BIN)/python -c '$(LIST)' $(subst $(comma), ,$(EXTRAS)) >$(VENV)/required.txt
	$(INSTALL) --no-compile -r $(VENV)/required.txt

clean:
	rm -rf $(VENV) build dist results *.egg-info kernels/_*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .benchmarks .hypothesis
	find kernels traces emu csrc tests -name __pycache__ -prune -exec rm -rf {} +
