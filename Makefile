# Everything sets itself up: `make demo` and `make test` are all that a fresh machine needs besides Python 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests run side by side, in more processes than there are cores, because many tests wait for a disk,
# a lease or another process. Those that share what there is one of (a private SLURM) stay together.
TESTERS ?= 4
# More of the long tests wait, and those on SLURM do little else.
LONG_TESTERS ?= 6
HOW := --dist loadscope --durations=15 --numprocesses
PYTEST := $(BIN)/python -m pytest $(HOW)
# What Python compiles is kept, whatever the environment says, because hundreds of processes import the
# same modules.
export PYTHONDONTWRITEBYTECODE :=
# What runs in the two other environments: `make compat SELECT="not long"` runs the whole suite there.
SELECT ?= compat and not long
# Only files that have such tests are collected there, unless other tests are selected, too.
WHERE = $(if $(findstring compat,$(SELECT)),$$(grep --recursive --files-with-matches --include="test_*.py" "mark\.compat" tests))
NODE_STAMP := tests/conformance/node_modules/.installed

# pip would compile 200 MB of sources, most of which nobody imports. What nearly all tests import is
# compiled here once, and not by each of their processes at the same time.
COMPILED := dask.array, distributed, hypothesis, numcodecs, pytest, tensorstore, xarray, zarr, shardwrite

.PHONY: demo test test-long compat compat-lowest compat-newest check format bench docs clean

$(STAMP): pyproject.toml
	@echo "Making $(VENV) with all that tests need. This takes a few minutes, once."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[check,bench,demo,docs]"
	$(BIN)/python -c "import $(COMPILED)"
	touch $@

# A reader in JavaScript is one of the oracles. An emulator of Azure, a linter for prose and a type
# checker come from npm, too. Without it, their tests are skipped, and say so.
$(NODE_STAMP): tests/conformance/package.json
	@if command -v npm >/dev/null; then cd tests/conformance && npm install --silent --no-audit --no-fund && touch node_modules/.installed; \
	else echo "npm is not here: tests with zarrita, azurite and pyright will be skipped, and prose is checked without write-good"; fi

demo: $(STAMP)
	$(BIN)/shardwrite demo

test: $(STAMP) $(NODE_STAMP)
	$(PYTEST) $(TESTERS) -m "not long"

test-long: $(STAMP) $(NODE_STAMP)
	$(PYTEST) $(LONG_TESTERS) -m "long and not campaign"

# The oldest versions that pyproject allows on the oldest Python, and the newest of all on the newest.
compat: compat-lowest compat-newest

compat-lowest compat-newest: compat-%: .compat/%/.installed $(NODE_STAMP)
	COMPAT=$* $(<D)/bin/python -m pytest $(HOW) $(TESTERS) -m "$(SELECT)" $(WHERE)

.compat/%/.installed: pyproject.toml tests/compat/environment.py $(STAMP)
	$(BIN)/python tests/compat/environment.py $* $(@D)
	touch $@

check: $(STAMP) $(NODE_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/readability.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m benchmarks.side_by_side

docs: $(STAMP)
	$(BIN)/python docs/make.py

clean:
	rm -rf $(VENV) .compat build demo-output tests/conformance/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis
