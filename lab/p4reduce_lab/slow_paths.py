# SPDX-License-Identifier: Apache-2.0
"""Prints warnings of logs about slow ways that were used because a fast one is missing.

The user who started switch and ranks sees it on the console: logs of a run that went well are not
read, and some are removed with it. Each such message says "slower"; it is a warning.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

_MARK = " slower"
_reported: set[str] = set()


def tell(logs: Iterable[Path]) -> None:
    """Print each such line of these logs to standard error, unless it was there before."""
    for log in logs:
        try:
            lines = log.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            # Behind time, level and module, which differ.
            said = line.partition(": ")[2] if " WARNING " in line else line
            if _MARK in line and said not in _reported:
                _reported.add(said)
                print(f"p4reduce-lab: {log.stem}: {said}", file=sys.stderr, flush=True)
