# SPDX-License-Identifier: Apache-2.0
"""For all tests: random input for as long as there is time, a bound on what it leaves, file order.

Random input is a little in every run, and a lot by `make fuzz`.
"""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzzing import Fuzz
from skip_summary import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]  # pytest finds a hook by its name

ROOM = 64 << 20  # bytes that the process may have grown by

_fuzz_tests = pytest.StashKey[int]()

# Files are given to test processes in this order. A long one at the end would keep a single process
# busy; several that start many processes each would get into each other's way.
_FIRST = [
    f"tests/{name}.py"
    for name in (
        "lab/demo/test_run_ending",
        "worker/collectives/test_allreduce_e2e",
        "controller/cli/test_controller_cli",
        "lab/demo/test_run",
        "worker/session/test_recovery",
        "controller/fabric/test_controller_bmv2",
        "lab/demo/test_run_faults",
        "worker/session/test_control_path",
        "lab/test_exec_and_up",
        "worker/session/test_reform",
    )
]


def pytest_configure() -> None:
    # A shell script that starts the tests with "&" leaves them SIGINT ignored, and children inherit
    # that: none could be ended as by Ctrl-C, which several tests are about.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(_FIRST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(_FIRST)))
    config.stash[_fuzz_tests] = sum(item.get_closest_marker("fuzz") is not None for item in items)


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
