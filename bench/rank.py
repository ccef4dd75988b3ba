# SPDX-License-Identifier: Apache-2.0
"""One rank of a program: calls a function of a module, and leaves what it returns as JSON.

    python -m bench.rank MODULE:FUNCTION ARGUMENTS REPORT

ARGUMENTS are the function's keywords as JSON. "{rank}" in REPORT is the rank's number.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def command(function: Callable[..., Any], given: dict[str, Any], report: str) -> list[str]:
    """Return what Python is given to run a function as a rank."""
    module = function.__module__
    if module == "__main__":  # of the program that was started
        module = sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]
    return ["-m", "bench.rank", f"{module}:{function.__name__}", json.dumps(given), report]


def main() -> None:
    name, given, report = sys.argv[1:]
    module, _, function = name.partition(":")
    result = getattr(importlib.import_module(module), function)(**json.loads(given))
    Path(report.replace("{rank}", os.environ["RANK"])).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
