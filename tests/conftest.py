# SPDX-License-Identifier: Apache-2.0
"""For all tests: random input for as long as there is time, a bound on what it leaves, file order.

Random input is a little in every run, and a lot by `make fuzz`. It is the same in every run of
`make test`, so that a change is judged by what it changes; FRESH_SEEDS=1 draws other input.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzzing import Fuzz
from hypothesis import HealthCheck, settings
from records import (
    pytest_runtest_logfinish,
    pytest_runtest_logreport,
    pytest_runtest_logstart,
    pytest_sessionfinish,
)
from skip_summary import pytest_terminal_summary

__all__ = [  # pytest finds a hook by its name
    "pytest_runtest_logfinish",
    "pytest_runtest_logreport",
    "pytest_runtest_logstart",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
]

# Where this is set, each of the hundreds of processes that tests start compiles all that it imports
# again, and pytest rewrites the assertions of all files in each of its own.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

FRESH_SEEDS = bool(os.environ.get("FRESH_SEEDS") or os.environ.get("FUZZ_SECONDS"))

# On a busy machine an example may take any time.
settings.register_profile(
    "p4reduce",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not FRESH_SEEDS,
)
settings.load_profile("p4reduce")

ROOM = 64 << 20  # bytes that the process may have grown by

_fuzz_tests = pytest.StashKey[int]()

# Files are given to test processes in this order. A long one at the end would keep a single process
# busy; those that mostly compute stand between those that mostly wait.
_FIRST = [
    f"tests/{name}.py"
    for name in (
        "p4src/test_tofino2_compiled",
        "lab/demo/test_run_ending",
        "worker/session/test_recovery",
        "lab/demo/test_run",
        "worker/session/test_control_path",
        "controller/fabric/test_controller_bmv2",
        "worker/collectives/test_allreduce_errors",
        "switch/loader/test_hostile_programs",
        "worker/session/test_coming_and_going",
        "lab/demo/test_run_faults",
        "worker/session/test_reform",
        "controller/cli/test_controller_cli",
        "worker/collectives/test_allreduce_e2e",
        "lab/test_exec_and_up",
        "controller/service/test_tls",
        "switch/ports/test_switch_process",
        "controller/fabric/test_controller_switch_loss",
        "model/test_faults",
        "controller/daemon/test_controller_daemon",
        "lab/test_output",
        "worker/session/test_interrupted_calls",
        "switch/loader/test_loader",
        "worker/transport/test_loss",
        "packet/test_packet_launchers",
        "controller/cli/test_doctor",
        "compression/test_over_switch",
        "differential/test_differential",
    )
]


def pytest_configure() -> None:
    # A shell script that starts the tests with "&" leaves them SIGINT ignored, and children inherit
    # that: none could be ended as by Ctrl-C, which several tests are about.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if gone := [name for name in _FIRST if not (config.rootpath / name).exists()]:
        raise pytest.UsageError(f"tests/conftest.py puts first what is not there: {gone}")
    places = {name: place for place, name in enumerate(_FIRST)}
    if hasattr(config, "workerinput"):  # of xdist; else they run in the order that was asked for
        items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(_FIRST)))
    config.stash[_fuzz_tests] = sum(item.get_closest_marker("fuzz") is not None for item in items)


def pytest_collectstart() -> None:
    gc.disable()  # until all tests are collected, most of which stays


def pytest_collection_finish() -> None:
    """What was collected stays to the end: no search for garbage has to look at it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests draw their seeds from `random`, which each begins with its own name."""
    random.seed(None if FRESH_SEEDS else item.nodeid)


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """Each test's share of $FUZZ_SECONDS; without, as many rounds as the test says."""
    assert request.node.get_closest_marker("fuzz"), "mark it, or make fuzz leaves it out"
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    seconds = os.environ.get("FUZZ_SECONDS")
    share = float(seconds) / max(request.config.stash[_fuzz_tests], 1) if seconds else None
    return Fuzz(seed, share)


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.fixture
def bounded() -> Iterator[None]:
    """Asserts that memory does not grow, nor the number of open files."""
    before, files = resident(), len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert resident() < before + ROOM
    assert len(list(Path("/proc/self/fd").iterdir())) < files + 20
