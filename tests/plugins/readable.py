# SPDX-License-Identifier: Apache-2.0
"""Waits until there is something to read, at any descriptor."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Protocol, TypeVar


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


_T = TypeVar("_T", bound=HasDescriptor | int)


def readable(files: Sequence[_T], seconds: float) -> list[_T]:
    """Those of `files` that can be read, once there are any, or none after so many seconds."""
    numbers = [file if isinstance(file, int) else file.fileno() for file in files]
    poll = select.poll()
    for number in numbers:
        poll.register(number, select.POLLIN)
    ready = dict(poll.poll(seconds * 1000))
    return [file for file, number in zip(files, numbers, strict=True) if number in ready]
