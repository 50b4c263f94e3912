# Everything sets itself up: `make demo` and `make test` are all that a fresh machine needs besides Python 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests run side by side. Many wait for a disk or a process, so there are more of them than two cores.
# Those that share what there is one of (a private SLURM) stay together.
TESTERS ?= 3
PYTEST := $(BIN)/python -m pytest --numprocesses $(TESTERS) --dist loadgroup --durations=15
NODE_STAMP := tests/conformance/node_modules/.installed

.PHONY: demo test test-long check format bench clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[check,bench,demo]"
	touch $@

# A reader in JavaScript is one of the oracles; without npm its tests are skipped, and say so.
$(NODE_STAMP): tests/conformance/package.json
	@if command -v npm >/dev/null; then cd tests/conformance && npm install --silent --no-audit --no-fund && touch node_modules/.installed; \
	else echo "npm is not here: tests with zarrita will be skipped"; fi

demo: $(STAMP)
	$(BIN)/shardwrite demo

test: $(STAMP) $(NODE_STAMP)
	$(PYTEST) -m "not long"

test-long: $(STAMP) $(NODE_STAMP)
	$(PYTEST) -m long

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m benchmarks.side_by_side

clean:
	rm -rf $(VENV) demo-output tests/conformance/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis
