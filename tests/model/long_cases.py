# SPDX-License-Identifier: Apache-2.0
"""Cases as parameters of a test; those that take long are for `make test-long`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Protocol

import pytest


class Named(Protocol):
    @property
    def name(self) -> str: ...


def marked(cases: Iterable[Named], long: Collection[str]) -> list[Any]:
    """The cases by their names, of which some are `long`."""
    return [
        pytest.param(case, marks=[pytest.mark.long] * (case.name in long), id=case.name)
        for case in cases
    ]
