# SPDX-License-Identifier: Apache-2.0
"""gRPC's own log in a process that uses the library: off, unless the program wants it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# A thing that gRPC logs as an error, besides raising it.
PROGRAM = """
{first}
import p4reduce.control.client
import grpc
from concurrent.futures import ThreadPoolExecutor

try:
    grpc.server(ThreadPoolExecutor(1)).add_insecure_port("unix:/nowhere/socket")
except RuntimeError:
    print("refused")
"""


@pytest.mark.parametrize(
    ("first", "setting", "logged"),
    [
        pytest.param("", {}, False, id="ours"),
        pytest.param("", {"GRPC_VERBOSITY": "ERROR"}, True, id="set"),
        pytest.param("import grpc", {}, True, id="imported-before"),
    ],
)
def test_grpc_logs_only_where_it_is_wanted(
    first: str, setting: dict[str, str], logged: bool
) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first)],
        env={**clean, **setting},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout == "refused\n", done.stderr
    assert ("add_port" in done.stderr) is logged, done.stderr
