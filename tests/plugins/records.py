# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: writes to the file $TEST_RECORDS what becomes of each test, for tools/ci.py.

A JSON object a line. With xdist, the process that collects the others' reports writes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

# Not for runs of pytest that tests make, nor for xdist's processes.
_FILE = os.environ.pop("TEST_RECORDS", "")


def _record(**what: Any) -> None:
    if _FILE:
        with Path(_FILE).open("a") as file:
            file.write(json.dumps(what) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _record(what="begun", test=nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    _record(what="over", test=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        # xdist reports a process that died with its test in no phase.
        crashed = report.when not in ("setup", "call", "teardown")
        never = crashed or "fuzz" in report.keywords
        _record(what="failed", test=report.nodeid, text=report.longreprtext, never_repeated=never)
    elif report.passed and report.when == "call":
        _record(what="passed", test=report.nodeid)


def pytest_sessionfinish(exitstatus: int) -> None:
    _record(what="exit", code=int(exitstatus))
