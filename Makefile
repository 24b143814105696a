# Everything that is done more than once. `make run` works from a fresh clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# mypy and import-linter cannot follow packages that lie beside each other and are installed inside
# one another; they get a tree of links that looks as installed.
TREE := build/lint

.PHONY: run test test-all most ray superlink soak oldest lint format docs docs-serve dist clean

run: $(INSTALLED)
	$(BIN)/pncs run
	@echo
	@echo "To have all clients count, those not chosen too: $(BIN)/pncs run --strategy sketched-mean"

# What starts Ray, and what starts a SuperLink, has time limits and mostly waits: each of the two runs
# one after the other, beside the other and beside all else, which runs on all cores.
FILES_WITH = $$(grep -rlE 'mark\.$(1)' tests --include='test_*.py')
test: $(INSTALLED)
	$(MAKE) -j 3 most ray superlink AND="and not minutes"

test-all: $(INSTALLED)
	$(MAKE) -j 3 most ray superlink

# Tests start hundreds of processes, each of which would compile all modules if none may be kept.
unexport PYTHONDONTWRITEBYTECODE
# PyTorch's threads would wait for each other in circles, on cores that other tests need.
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest

most: $(INSTALLED)
	$(PYTEST) -m "not ray and not superlink $(AND)" -n auto --dist worksteal

# Ray's workers would otherwise come after all else (niceness 15), and so wait for the other tests.
ray: $(INSTALLED)
	RAY_worker_niceness=0 $(PYTEST) -m "ray $(AND)" $(call FILES_WITH,ray)

superlink: $(INSTALLED)
	$(PYTEST) -m "superlink $(AND)" $(call FILES_WITH,superlink)

# The longest tests in full; `make test-all` runs them at reduced size.
soak: $(INSTALLED)
	PNCS_KILLS=100 PNCS_HOSTILE_REPLIES=100000 PNCS_SOAK_ROUNDS=2000 PNCS_SOAK_CLIENTS=100 \
	    PNCS_HONEST_ROUNDS=1000 PNCS_SUPERLINK_KILLS=3 PNCS_RAY_KILLS=5 \
	    PNCS_RAY_ROUNDS=200 PNCS_CUTS=200 \
	    $(BIN)/python -m pytest -v --durations=0 -o timeout=3600 \
	    tests/strategies/resume/test_checkpoint.py tests/strategies/resume/test_checkpoint_files.py \
	    tests/strategies/replies/test_hostile.py \
	    tests/strategies/test_soak.py tests/deployment/test_kill.py \
	    tests/simulations/run/test_resume.py tests/simulations/run/test_faults_on_ray.py \
	    tests/simulations/run/test_cut_files.py

# The library on the oldest Flower that it promises to work with, in an environment of its own.
OLDEST := build/flwr-oldest
oldest:
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install -q filelock numpy scipy scikit-learn hypothesis pytest \
	    pytest-timeout "$$(sed -n 's/^dependencies = \["flwr>=\([0-9.]*\),.*/flwr==\1.*/p' pyproject.toml)"
	$(OLDEST)/bin/python -m pip install -q --no-deps -e .
	$(OLDEST)/bin/python -m pytest -m "not ray and not superlink" $(addprefix tests/clients/test_,summary_mod.py form.py state.py) \
	    $(addprefix tests/strategies/,grids legacy replies resume round rules/test_rules.py \
	    test_log.py test_stopping.py) tests/examples/test_flowers_examples.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf $(TREE) && mkdir -p $(TREE)/pncs_flower
	ln -s $(CURDIR)/pncs_flower/*.py $(CURDIR)/pncs_flower/py.typed \
	    $(CURDIR)/pncs_flower/devices $(CURDIR)/pncs_flower/messages $(CURDIR)/pncs_flower/sketches \
	    $(CURDIR)/pncs_flower/subset $(CURDIR)/strategies \
	    $(CURDIR)/clients $(CURDIR)/simulations $(TREE)/pncs_flower/
	cd $(TREE) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml \
	    --cache-dir $(CURDIR)/.mypy_cache -p pncs_flower
	cd $(TREE) && $(CURDIR)/$(BIN)/lint-imports --no-cache $(CURDIR)/pyproject.toml

format: $(INSTALLED)
	$(BIN)/python .ci/copy_settings.py
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The site, read anew each time: a warning, such as a link to nothing, is an error.
SITE := build/site
PORT ?= 8000
docs: $(VENV)/.docs
	$(BIN)/sphinx-build -q -E -W --keep-going -d build/doctrees -c docs/site docs $(SITE)
	@echo "The site: $(SITE)/index.html"

docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(SITE) $(PORT)

$(VENV)/.docs: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -e '.[docs]'
	touch $@

# What a release is made of, checked. The version is the one in pyproject.toml.
dist: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -e '.[simulation,dev]'
	touch $@

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
