# SPDX-License-Identifier: Apache-2.0
"""Loads a student's Python file."""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from p4reduce.methods.in_process import LostError

from exercises.checks.report import UnusableError, WrongError

_T = TypeVar("_T")


def load(source: Path, name: str) -> Any:
    """Return what a file calls `name`. Raises UnusableError."""
    try:
        found = runpy.run_path(str(source))
    except Exception as error:
        raise UnusableError(f"{source} cannot be run: {_last(source, error)}") from None
    if name not in found:
        raise UnusableError(f"{source} has no {name}: the skeleton says what it is")
    return found[name]


def guarded(source: Path, work: Callable[[], _T]) -> _T:
    """Call what uses a student's code; an exception of it is something wrong."""
    try:
        return work()
    except LostError:
        raise WrongError(
            "the ranks did not all call allreduce equally often, with arrays of one shape",
            "an all-reduce is a call of all ranks, also of those that have nothing to add",
        ) from None
    except WrongError:
        raise
    except Exception as error:
        raise WrongError(
            f"it ended with {type(error).__name__}: {error}",
            "run it by hand, and look at the line",
            _last(source, error),
        ) from None


def _last(source: Path, error: BaseException) -> str:
    """The last line of the file that an error went through."""
    lines = [
        f"{source.name}:{frame.lineno}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(source)
    ]
    return lines[-1] if lines else f"{type(error).__name__}: {error}"
