# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: what was skipped, grouped by what it needs, in a few lines at the end.

`pytest -rs` shows each skip with its place.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable

import pytest

# What a reason is about, by the first pattern that is found in it. Reasons name versions, paths
# and errors as well, which would make a group of each.
_GROUPS = (
    (r"could not import '(\w+)", r"needs \1"),
    (r"gigabytes", "fetches gigabytes: make test-install"),
    (r"simple_switch_grpc is not|needs simple_switch_grpc", "needs simple_switch_grpc"),
    (r"p4c[\w-]* is not|needs p4c", "needs p4c"),
    (r"[Mm]ininet", "needs Mininet"),
    (r"tshark", "needs tshark"),
    (r"machine code|C compiler|ziglang", "needs a C compiler"),
    (r"\broot\b", "needs root"),
    (r"\btorch\b|PyTorch", "needs torch"),
)
_LONGEST = 60  # characters of a reason of no group
_WIDTH = 100


def group(reason: str) -> str:
    """What a test was skipped for, so short that several stand in a line."""
    for pattern, name in _GROUPS:
        if match := re.search(pattern, reason):
            return match.expand(name)
    one_line = " ".join(reason.removeprefix("Skipped: ").split())
    return textwrap.shorten(
        re.sub(r"(?<![A-Za-z])\d+", "N", one_line), _LONGEST, placeholder=" ..."
    )


def summary(reasons: Iterable[str]) -> list[str]:
    """The lines: "skipped 14: needs torch (12), fetches gigabytes (2)"; none without a reason."""
    counts = Counter(map(group, reasons))
    if not counts:
        return []
    groups = ", ".join(f"{name} ({count})" for name, count in counts.most_common())
    text = f"skipped {counts.total()}: {groups}"
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = []
    for report in terminalreporter.getreports("skipped"):
        # pytest gives the file, the line and the reason of a skip.
        place = report.longrepr
        reasons.append(place[2] if isinstance(place, tuple | list) else str(place))
    for line in summary(reasons):
        terminalreporter.write_line(line)
