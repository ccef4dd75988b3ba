# SPDX-License-Identifier: Apache-2.0
# `make` lists the targets. Each sets up what it needs in .venv.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

VENV   := .venv
PYTHON := $(VENV)/bin/python
READY  := $(VENV)/.ready
PACKAGES := native/p4reduce_native worker/p4reduce controller/p4reduce_controller switch/p4reduce_switch lab/p4reduce_lab model/p4reduce_model bench
SCRIPTS := experiments tools examples

# What `make run` and `make lab` take: WORKERS, SWITCH=bmv2|embedded, BW=Mbit/s; `make run` also
# NET=mininet|local (the lab is a Mininet network), COMPRESSION=cat (or another name; a wrong one
# lists all), or FAULT=kill-worker|restart-switch|restart-controller. All but the first go through
# the environment.
WORKERS ?= 4

.PHONY: help
help:
	@sed -n 's/^\([a-z0-9]*\): .*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

$(READY): pyproject.toml tools/setup-venv
	tools/setup-venv $(VENV)
	@touch $@

.PHONY: setup
setup: $(READY)  ## the virtual environment, as every other target makes it

.PHONY: run
run: $(READY)  ## train a classifier on WORKERS=4 workers, gradients summed by the switch
	@$(PYTHON) -m p4reduce_lab run --workers $(WORKERS)

.PHONY: lab
lab: $(READY)  ## leave a Mininet network up, with its prompt (root); `make stop` takes it down
	@$(PYTHON) -m p4reduce_lab lab --hosts $(WORKERS)

.PHONY: stop
stop: $(READY)  ## take down what `make lab` has left up
	@$(PYTHON) -m p4reduce_lab stop

# Most tests wait for processes, leases and timers most of the time, so two cores have time for
# more than two of them. In the order of tests/conftest.py: the longest files first.
TESTS_AT_ONCE ?= 3

.PHONY: test
test: $(READY)  ## every test that this machine can run; says what it skips and why
	$(PYTHON) -m pytest -n $(TESTS_AT_ONCE) --dist loadfile --no-loadscope-reorder

.PHONY: model
model: $(READY)  ## check the protocol exhaustively, by the compiled program and the worker (minutes)
	PYTHONPATH=model $(PYTHON) -m p4reduce_model

# SECONDS are shared among the tests; SEED=… repeats what one of them has printed.
SECONDS := 300
.PHONY: fuzz
fuzz: $(READY)  ## random frames, requests and files at everything that reads them, for SECONDS=300
	FUZZ_SECONDS=$(SECONDS) $(PYTHON) -m pytest -m fuzz --timeout=0

MINUTES := 30
LOSS := 0.01
.PHONY: soak
soak: $(READY)  ## run for MINUTES=30 with LOSS=0.01 of the frames, and tell whether anything grows
	CYCLES=1000 $(PYTHON) -m pytest -q --timeout=0 tests/controller/jobs/test_churn.py
	$(PYTHON) -m bench.worker.soak --minutes $(MINUTES) --loss $(LOSS)

.PHONY: lint
lint: $(READY)  ## ruff and mypy --strict
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy $(PACKAGES)
	for scripts in $(SCRIPTS); do (cd $$scripts && \
	    $(CURDIR)/$(VENV)/bin/mypy --config-file $(CURDIR)/pyproject.toml \
	    --cache-dir $(CURDIR)/.mypy_cache *.py) || exit 1; done

.PHONY: format
format: $(READY)  ## let ruff format the Python
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

.PHONY: bench
bench: $(READY)  ## measure: switch, worker, all-reduce
	$(PYTHON) -m bench.run

.PHONY: experiments
experiments: $(READY)  ## how little can be sent: adaptive compression against fixed levels (minutes)
	$(PYTHON) experiments/run.py

.PHONY: p4
p4: $(READY)  ## compile p4src/ with p4c into p4src/compiled/ (committed; only needed after a change)
	$(PYTHON) tools/compile_p4.py
	$(PYTHON) -m bench.bmv2.one_lane.compile

.PHONY: clean
clean:  ## remove build products and the virtual environment
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
