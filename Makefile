# SPDX-License-Identifier: Apache-2.0
# `make` lists the targets. Each sets up what it needs in .venv.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

VENV   := .venv
PYTHON := $(VENV)/bin/python
READY  := $(VENV)/.ready
LINT_READY  := $(VENV)/.ready-for-lint
PACKAGES := common/p4reduce_common native/p4reduce_native worker/p4reduce controller/p4reduce_controller switch/p4reduce_switch lab/p4reduce_lab model/p4reduce_model bench
SCRIPTS := experiments tools examples

# What `make run` and `make lab` take: RANKS, SWITCH=bmv2|embedded, BW=100Mbit, PCAP=1; `make run`
# also WEB=1 (the live page), NET=mininet|local|udp (the lab is a Mininet network), SWITCHES=2 (side by side), CORES=2 (of the embedded switch), TREE=2x4 (leaves
# and the ranks of each), COMPRESSION=cat (or another name; a wrong one lists all),
# FAULT=kill-worker|restart-switch|restart-controller, or FRAMEWORK=torch. All but the first go
# through the environment.
RANKS ?= 4
LAB_TAKES := RANKS SWITCH BW PCAP
RUN_TAKES := $(LAB_TAKES) WEB NET SWITCHES CORES TREE COMPRESSION FAULT FRAMEWORK

# A name that nobody reads is a mistake, which would otherwise pass in silence. Beside other goals it
# may be theirs.
GIVEN := $(foreach word,$(MAKEOVERRIDES),$(if $(findstring =,$(word)),$(firstword $(subst =, ,$(word)))))
check_given = $(if $(filter $(1),$(MAKECMDGOALS)),$(foreach name,$(filter-out VENV PYTHON $(2),$(GIVEN)),\
    $(error make $(1) does not know $(name). It takes $(2))))
ifeq ($(words $(MAKECMDGOALS)),1)
$(call check_given,run,$(RUN_TAKES))
$(call check_given,lab,$(LAB_TAKES))
endif

.PHONY: help
help:
	@sed -n 's/^\([a-z0-9-]*\): .*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

$(READY): pyproject.toml tools/setup-venv
	tools/setup-venv $(VENV) all,test
	@touch $@

$(LINT_READY): $(READY)
	tools/setup-venv $(VENV) lint
	@touch $@

.PHONY: setup
setup: $(READY)  ## the virtual environment: what demo and tests need; lint adds its own

.PHONY: run
run: $(READY)  ## train a classifier on RANKS=4 ranks, gradients summed by the switch
	@$(PYTHON) -m p4reduce_lab run $(if $(filter file,$(origin RANKS)),,--ranks $(RANKS))

.PHONY: lab
lab: $(READY)  ## leave a Mininet network up, with its prompt (root); `make stop` takes it down
	@$(PYTHON) -m p4reduce_lab lab --ranks $(RANKS)

.PHONY: stop
stop: $(READY)  ## take down the network of `make lab`
	@$(PYTHON) -m p4reduce_lab stop

# Many tests wait for processes, leases and timers, so two cores have time for more than two of
# them. In the order of tests/conftest.py: the longest files first.
TESTS_AT_ONCE ?= 4

# Random input is the same in every run; FRESH_SEEDS=1 draws other input, and SEED=… repeats what a
# test has printed.
PYTEST := $(PYTHON) -m pytest -n $(TESTS_AT_ONCE) --dist loadfile --no-loadscope-reorder

# Where several processes share the cores, threads of numpy's are only in their way.
test test-long: export OPENBLAS_NUM_THREADS := 1

.PHONY: test
test: $(READY)  ## every test that this machine can run, except long ones; says what it skips and why
	$(PYTEST) -m "not long and not engines"

.PHONY: test-long
test-long: $(READY)  ## what takes long: whole runs with faults, the worker on BMv2, in Mininet (half an hour)
	$(PYTEST) -m "long and not engines"

.PHONY: test-install
test-install: $(READY)  ## the wheel beside the newest jupyterlab, ray, mlflow, … (gigabytes, minutes)
	P4REDUCE_TEST_INSTALL=1 $(PYTHON) -m pytest tests/install

ENGINES := tests/engines
.PHONY: test-engines
test-engines: $(READY)  ## MPI and other engines: installs what it can, names what it skips (minutes)
	tools/install-engines $(VENV)
	$(PYTHON) -m pytest -n 2 --dist loadfile -m engines $(ENGINES)

# The CPU build, 200 MB, where this is run first.
TORCH := torch==2.13.0
NEED_TORCH = $(PYTHON) -c 'import torch' 2>/dev/null || $(PYTHON) -m pip install --quiet $(TORCH)
.PHONY: test-torch
test-torch: $(READY)  ## install PyTorch where it is missing, and test what needs it (minutes)
	$(PYTHON) -c 'import torch, expecttest' 2>/dev/null || $(PYTHON) -m pip install --quiet $(TORCH) expecttest
	$(PYTHON) -m pytest -n 2 --dist loadfile tests/pytorch

.PHONY: test-frameworks
test-frameworks: $(READY)  ## install Lightning, Accelerate and Transformers, and run the scripts of their page (minutes)
	$(NEED_TORCH)
	$(PYTHON) -m pip install --quiet lightning accelerate transformers
	$(PYTHON) -m pytest tests/frameworks

.PHONY: notebooks
notebooks: $(READY)  ## run the notebooks of docs/notebooks, and keep their outputs (torch; a minute)
	$(NEED_TORCH)
	$(PYTHON) -m pytest -p no:cacheprovider --nbmake --overwrite docs/notebooks

.PHONY: model
model: $(READY)  ## check the protocol exhaustively, with the compiled program and the worker (minutes)
	PYTHONPATH=model $(PYTHON) -m p4reduce_model

# gcc's sanitizers in compiled programs and their run-time. Python itself is not made for them: what
# it still has at its end is no leak of ours, and the library has to be there before Python is.
# Compiled programs, the loop and its ports, links, and the worker with whole all-reduces.
SANITIZED_TESTS := tests/native/test_c_programs.py tests/native/test_c_expressions.py \
    tests/native/test_loop.py tests/native/test_link_delivery.py tests/native/test_link_wakeups.py \
    tests/native/test_link_offload.py tests/native/test_datagrams.py tests/native/test_udp_segments.py \
    tests/worker/protocol/test_slots.py tests/worker/reference/test_reference_steps.py \
    tests/worker/session/test_lane_codec.py tests/compression/test_kernels.py \
    tests/worker/protocol/test_forged_answers.py \
    tests/worker/collectives/test_lanes_e2e.py tests/worker/session/test_lives.py
# The sanitizer keeps memory that has been freed.
UNSANITIZED_TESTS := tests/native/test_loop.py::test_a_jam_gives_its_memory_back
# Those that build their programs with sanitizers by themselves.
FUZZED_TESTS := tests/native/test_poll_fuzz.py tests/native/test_ring_races.py
.PHONY: native-sanitize
native-sanitize: $(READY)  ## all C against Python, under ASan and UBSan (minutes)
	mkdir -p -m 700 build/sanitized
	CC=gcc P4REDUCE_CACHE_DIR=$(CURDIR)/build/sanitized \
	P4REDUCE_CFLAGS="-O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	$(PYTHON) -m pytest -p no:cacheprovider --timeout=900 -m "not fuzz" $(SANITIZED_TESTS) \
	    --deselect $(UNSANITIZED_TESTS)
	$(PYTHON) -m pytest -p no:cacheprovider --timeout=900 $(FUZZED_TESTS)

# SECONDS are shared among the tests; SEED=… repeats what one of them has printed.
SECONDS := 300
.PHONY: fuzz
fuzz: $(READY)  ## random frames, requests and files at everything that reads them, for SECONDS=300
	FUZZ_SECONDS=$(SECONDS) $(PYTHON) -m pytest -m fuzz --timeout=0

MINUTES := 30
LOSS := 0.01
.PHONY: soak
soak: $(READY)  ## run for MINUTES=30 with LOSS=0.01 of the frames, and report what grows
	CYCLES=1000 $(PYTHON) -m pytest -q --timeout=0 tests/controller/jobs/test_churn.py
	$(PYTHON) -m bench.worker.soak --minutes $(MINUTES) --loss $(LOSS)

.PHONY: lint
lint: $(LINT_READY) prose  ## ruff, mypy --strict, clang-format, C compilers, imports, and the English of the pages
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PYTHON) tools/lint_private.py
	$(PYTHON) tools/lint_words.py
	python3 tools/lint_commits.py
	$(PYTHON) tools/lint_c.py
	$(PYTHON) tools/make_header.py --check
	$(PYTHON) tools/make_proto.py --check
	PYTHONPATH=model $(VENV)/bin/lint-imports --no-cache --no-logo
	$(VENV)/bin/mypy $(PACKAGES) exercises/__main__.py exercises/checks
	for scripts in $(SCRIPTS); do (cd $$scripts && \
	    $(CURDIR)/$(VENV)/bin/mypy --config-file $(CURDIR)/pyproject.toml \
	    --cache-dir $(CURDIR)/.mypy_cache *.py) || exit 1; done

.PHONY: prose
prose:  ## check the English of pages, docstrings and help texts: sentence length, phrases, page length
	@python3 tools/lint_prose.py; pages=$$?; python3 tools/lint_docstrings.py && exit $$pages

MERMAID := build/npm/node_modules/mermaid/dist/mermaid.min.js
$(MERMAID):
	@mkdir -p build/npm
	command -v npm >/dev/null && timeout 60 npm install --silent --no-audit --no-fund --ignore-scripts \
	    --prefix build/npm mermaid@11.12.0 || echo "no mermaid by npm: diagrams are fetched when they are looked at"

DOCS_READY := $(VENV)/.ready-for-docs
$(DOCS_READY): $(READY)
	tools/setup-venv $(VENV) docs
	@touch $@

.PHONY: docs
docs: $(DOCS_READY) $(MERMAID)  ## the site, into build/site; a broken link, anchor or reference is an error
	PYTHONPATH=. $(PYTHON) tools/build_site.py
	$(VENV)/bin/zensical build --strict --clean

.PHONY: docs-serve
docs-serve: $(DOCS_READY) $(MERMAID)  ## the site at http://localhost:8000
	PYTHONPATH=. $(PYTHON) tools/build_site.py
	$(VENV)/bin/zensical serve

.PHONY: format
format: $(LINT_READY)  ## format Python with ruff, and C with clang-format
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(PYTHON) tools/lint_c.py --fix

.PHONY: bench
bench: $(READY)  ## measure: switch, worker, all-reduce (a quarter of an hour)
	$(PYTHON) -m bench.run $(ARGUMENTS)

.PHONY: numbers
numbers: $(READY)  ## measure all that docs/figures.md shows, keep it as records, and show it
	$(PYTHON) -m bench.run --docs
	@$(MAKE) --no-print-directory compare

# ARGUMENTS="--rates 10Mbit --ranks 8": of `p4reduce-lab compare`; without, all of its standard set.
.PHONY: compare
compare: $(READY)  ## p4reduce beside Gloo and Open MPI on the same shaped links (root, torch; ten minutes)
	$(NEED_TORCH)
	$(PYTHON) -m p4reduce_lab compare $(ARGUMENTS)
	$(PYTHON) -m bench.allreduce.comparison_pages

.PHONY: accuracy
accuracy: $(READY)  ## time to accuracy over slow links, by Gloo and by the switch (root, torch; half an hour)
	$(NEED_TORCH)
	$(PYTHON) -m bench.pytorch.accuracy --docs $(ARGUMENTS)

.PHONY: scale
scale: $(READY)  ## simulate 4,096 ranks, measure shaped links, draw time against ranks (minutes)
	$(PYTHON) -m bench.scale.run

.PHONY: experiments
experiments: $(READY)  ## how little can be sent: adaptive compression against fixed levels (minutes)
	$(PYTHON) experiments/run.py

.PHONY: methods
methods: $(READY)  ## methods that communicate less, beside gradient descent: one scorecard (a quarter of an hour)
	$(PYTHON) -m bench.methods.scorecard $(ARGUMENTS)

.PHONY: p4
p4: $(READY)  ## compile p4src/ with p4c into p4src/compiled/ (committed; only needed after a change)
	$(PYTHON) tools/compile_p4.py

.PHONY: tofino
tofino: $(READY)  ## compile and assemble p4src/tofino2.p4, and write what it takes into docs/tofino.md
	$(PYTHON) tools/tofino.py

.PHONY: header
header: $(READY)  ## generate P4, C, the dissector and docs/protocol.md from the header's table
	$(PYTHON) tools/make_header.py

.PHONY: proto
proto: $(READY)  ## generate the control API's modules from control.proto (Python 3.11; its protoc is installed first)
	$(PYTHON) tools/make_proto.py

.PHONY: clean
clean:  ## remove build products and the virtual environment
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
