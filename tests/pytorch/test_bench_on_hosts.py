# SPDX-License-Identifier: Apache-2.0
"""Benchmarks on hosts in namespaces: what a rank prints holds nothing up, and is in errors."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from home import REASON, directory, hosts
from p4reduce_lab.errors import LabError

from bench.pytorch.on_hosts import run_on_hosts

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)
pytestmark = [
    pytest.mark.long,
    pytest.mark.root,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]


def print_and_meet(file: str) -> int:
    """The last rank prints more than a pipe holds, and the first waits for it."""
    if os.environ["RANK"] == "1":
        print("x" * (1 << 20), file=sys.stderr, flush=True)
        Path(file).touch()
    deadline = time.monotonic() + 200
    while not Path(file).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(os.environ["RANK"])


def fail() -> None:
    raise ValueError("this is why")


def test_a_rank_that_prints_much_does_not_hold_up_the_others() -> None:
    with directory() as here, hosts(2) as (network, environment):
        python_path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        file = str(here / "printed")
        found = run_on_hosts(network, print_and_meet, environment | python_path, file=file)
        assert found == [0, 1]
        with pytest.raises(LabError, match=r"(?s)ranks on 2 hosts failed:.*this is why"):
            run_on_hosts(network, fail, environment | python_path)
