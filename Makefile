# Thin on purpose: README.md has the same commands for people without make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
DEMO := experiments/quickstart/demo.csv

ROUNDS ?= 10

.PHONY: demo test test-full chaos kills check docs bench gpu-check dashboard screenshots clean pins plotly

demo: $(VENV)/.torch $(DEMO)
	$(BIN)/radt $(DEMO)

$(DEMO): experiments/quickstart/experiment.csv
	cp $< $@

dashboard: $(VENV)/.radt
	$(BIN)/radt dashboard

# Every page in light and dark, wide and narrow, with the runs of the demo, to be looked at.
screenshots: $(VENV)/.test $(VENV)/.system
	$(BIN)/python -m tests.frontend.screenshots radt-data build/screenshots

# Docker's images are made meanwhile; the tests that need them come last, and wait for them.
test: $(VENV)/.test $(VENV)/.system
	@$(BIN)/python -m tests.support.docker & \
	$(BIN)/python -m pytest -n 4 --dist loadfile --max-worker-restart 2; code=$$?; wait; exit $$code

# Before a release: tests marked long too, and property tests with all of their examples.
test-full: $(VENV)/.test $(VENV)/.system
	$(BIN)/python -m tests.support.docker --all
	HYPOTHESIS_PROFILE=full $(BIN)/python -m pytest -n 4 --dist loadfile -m ""

# Random faults, with what was recorded compared to what scripts wrote down; 500 rounds before a
# release. SEED=N repeats what was drawn from it.
chaos: $(VENV)/.test $(VENV)/.system
	$(BIN)/python -m tests.chaos --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

# The same for submitters on a Slurm of three nodes, killed at random moments.
kills: $(VENV)/.test $(VENV)/.system
	$(BIN)/python -m tests.cluster.kills $(if $(SEED),--seed $(SEED))

check: $(VENV)/.dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

# The charts' library as browsers get it (frontend/vendor/README.md).
plotly:
	npm pack --silent --pack-destination build plotly.js-cartesian-dist-min@$(PLOTLY_JS)
	tar -xzf build/plotly.js-cartesian-dist-min-$(PLOTLY_JS).tgz -C build package/plotly-cartesian.min.js package/LICENSE
	cp build/package/plotly-cartesian.min.js frontend/vendor/ && cp build/package/LICENSE frontend/vendor/plotly-LICENSE

# The documentation site, in build/docs/site; it needs no network, nor do its readers.
docs: $(VENV)/.docs
	$(BIN)/python -m docs.generator

bench: $(VENV)/.torch
	$(BIN)/python -m benchmarks

# On a machine with an NVIDIA GPU, at most 10 minutes; prints a section for docs/measurements.md.
gpu-check: $(VENV)/.torch
	$(BIN)/python -m benchmarks.gpu_check

clean:
	rm -rf $(VENV) build dist *.egg-info radt-data $(DEMO) .mypy_cache .pytest_cache .ruff_cache

# One stamp for each set of packages, so that a second call takes no time; the larger sets hold the
# smallest one, too.
$(VENV)/bin/python:
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || sh tests/system_packages.sh python3-venv
	$(PYTHON) -m venv $(VENV)

$(VENV)/.radt: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable . && touch $@

$(VENV)/.torch: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[torch]' && touch $@ $(VENV)/.radt

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[docs]' && touch $@ $(VENV)/.radt

$(VENV)/.system: tests/system_packages.sh | $(VENV)/bin/python
	sh $< && touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[test]' && touch $@ $(VENV)/.radt

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[dev]' && touch $@ $(VENV)/.test $(VENV)/.radt

pins: $(VENV)/.dev
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt
