# SPDX-License-Identifier: Apache-2.0
"""Processes that are forked for tests do and end as those that are started."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Forked processes have what Python reads at its start from the fork server.
STARTED = {"PYTHONNODEBUGRANGES": "1"}


def outcome(program: str, **environment: str) -> tuple[int, str, list[str]]:
    """The exit code, standard output, and the last line of standard error."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr.splitlines()[-1:]


@pytest.mark.parametrize(("environment", "forked"), [({}, True), (STARTED, False)])
def test_the_imports_are_there(environment: dict[str, str], forked: bool) -> None:
    program = "import sys; print('p4reduce_switch.cli' in sys.modules)"
    assert outcome(program, **environment) == (0, f"{forked}\n", [])


@pytest.mark.parametrize(
    "program",
    [
        "print('no end of a line', end='')",
        "import sys; print('said', file=sys.stderr); sys.exit(3)",
        "raise SystemExit('said')",
        "raise SystemExit(-1)",
        "raise ValueError('wrong')",
        "raise KeyboardInterrupt",
        "import atexit; atexit.register(print, 'at exit')",
        "import threading; threading.Timer(0.05, print, ['a thread']).start()",
        "import os; os.close(1); print('lost')",
        "import sys; sys.stdout = open('/dev/full', 'w'); print('lost')",
        "import os, sys; sys.stdout = None; sys.exit(2)",
        "import os; print(os.environ['MARK'])",
    ],
)
def test_the_end_is_the_same(program: str) -> None:
    assert outcome(program, MARK="here") == outcome(program, MARK="here", **STARTED)
