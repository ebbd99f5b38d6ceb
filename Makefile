# make demo and make test do all the set-up, in .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LIGHT := $(VENV)/.installed-for-demo
DOCS := $(VENV)/.installed-for-docs

# The versions that the tests are known to pass with; pyproject.toml has the ranges.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: install demo docs test test-fast coverage lint lock bench clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $@ $(LIGHT)

# The demo needs little of it all; who only wants to look should not wait for the rest.
$(LIGHT): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[demo]'
	touch $@

# The default encoder, about 88 MB, is kept in the user's cache.
demo: $(LIGHT)
	$(BIN)/recap weights pull dinov2-small
	$(BIN)/recap demo --out demo-out

PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder
# Tests start hundreds of processes: one compiles the sources, whatever the shell says of that.
test test-fast: export PYTHONDONTWRITEBYTECODE :=

# Tests that need the encoder's weights are skipped, saying so, if they cannot be had.
test: install
	-$(BIN)/recap weights pull dinov2-small
	$(PYTEST)

test-fast: install
	HYPOTHESIS_PROFILE=quick $(PYTEST) -m 'not slow and not network'

# How many of the lines the tests reach, in the commands and services that they start too.
coverage: install
	$(PYTEST) --cov=recap --cov-report=json:coverage.json --cov-report=term:skip-covered

lint: install
	$(BIN)/ruff check src tests benchmarks docs/hooks
	$(BIN)/ruff format --check src tests benchmarks docs/hooks
	$(BIN)/mypy

# The documentation, in site/; its tools are no part of the others' needs.
$(DOCS): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[docs]'
	touch $@

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: install
	$(BIN)/python benchmarks/speed_page.py

# Everything anew within the ranges of pyproject.toml, in an environment of its own.
lock:
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet -e '.[dev]'
	sed -n '/^#/p' constraints.txt > constraints.new
	$(VENV)-lock/bin/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' >> constraints.new
	mv constraints.new constraints.txt
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) $(VENV)-lock coverage.json build dist demo-out site .pytest_cache .mypy_cache .ruff_cache
