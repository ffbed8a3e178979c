# Two commands need nothing but python3 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The compiled core (docs/decisions/0022); TIMEBALL_COMPILE=0 leaves it interpreted.
export TIMEBALL_COMPILE ?= 1
CORE := $(VENV)/.compiled-$(TIMEBALL_COMPILE)
COMPILED := wheel cluster/state cluster/dispatch cluster/http
export PYTHONSAFEPATH := 1

# Seeds of the simulator (docs/testing.md): how many, and from which one on.
SEEDS ?= 200
FIRST ?= 0

.PHONY: demo chaos timetables simulate mutants test check lint types layers format clean

demo: $(CORE)
	$(BIN)/timeball demo

# A cluster under load and faults for MINUTES; SEED repeats a schedule of faults.
MINUTES ?= 3
chaos: $(CORE)
	$(BIN)/timeball bench chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# Timetables whose leader is struck at their very instants; 10 minutes unless MINUTES is given.
timetables: MINUTES = 10
timetables: $(CORE)
	$(BIN)/timeball bench timetables --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

test: $(CORE)
	$(BIN)/python -m pytest

simulate: $(CORE)
	$(BIN)/python tests/simulation/simulate.py --seeds $(SEEDS) --first $(FIRST)

check: lint types layers test

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) build/types/timeball
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

# Removes each safety rule in turn and shows that its tests fail; some minutes.
mutants: $(CORE)
	PYTHONPATH=tests/mutants $(BIN)/python tests/mutants/run.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Timeball needs Python 3.11 or newer (set PYTHON=...)")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	TIMEBALL_COMPILE=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# As new as its sources, or not there at all: what was compiled goes first. The build writes only
# what came out different, so what it leaves is told by hand that it is new.
$(CORE): $(STAMP) setup.py $(wildcard $(addsuffix /*.py,$(COMPILED)))
	find wheel cluster -name '*.so' -delete
	rm -f $(VENV)/.compiled-*
	$(BIN)/python setup.py --quiet build_ext --inplace
	find wheel cluster -name '*.so' -exec touch {} +
	touch $@

# mypy reads folders, not import hooks: show it the namespace as links.
build/types/timeball:
	mkdir -p $@
	for layer in client wheel cluster bench; do ln -sfn ../../../$$layer $@/$$layer; done

clean:
	find wheel cluster -name '*.so' -delete
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
