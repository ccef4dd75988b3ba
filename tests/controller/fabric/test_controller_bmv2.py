# SPDX-License-Identifier: Apache-2.0
"""Those tests once more that need a switch, with BMv2 in place of the embedded one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS_FOLDER = Path(__file__).parents[1]
TESTS = (
    "daemon/test_controller_daemon.py",
    "fabric/test_controller_p4client.py",
    # Of the following, what depends on the switch.
    "fabric/test_controller_switch_loss.py::test_a_switch_that_is_restarted",
    "fabric/test_controller_switch_loss.py::test_a_session_that_breaks_costs_nothing",
    "fabric/test_controller_switch_loss.py::test_what_is_missing_or_too_much_is_put_right",
    "fabric/test_controller_switch_loss.py::test_a_switch_that_forgot_its_program",
    "fabric/test_controller_switch_loss.py::test_another_controller_is_not_fought",
    "daemon/test_controller_restart.py::test_a_controller_that_is_killed",
    "daemon/test_controller_restart.py::test_the_switch_was_restarted_as_well",
)
TOOLS = ("simple_switch_grpc", "unshare", "ip", "ethtool", "sysctl")


@pytest.mark.long
@pytest.mark.bmv2
@pytest.mark.root
@pytest.mark.timeout(420)
def test_the_daemon_with_bmv2() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("needs root for veth pairs")
    if subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no network namespaces")
    # A namespace of its own, gone with the process: nothing of it is left on the machine.
    command = ["unshare", "-n", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *(str(TESTS_FOLDER / name) for name in TESTS)],
        env={**os.environ, "P4REDUCE_TEST_SWITCH": "bmv2"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20000:]
