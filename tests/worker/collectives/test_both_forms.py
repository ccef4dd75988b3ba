# SPDX-License-Identifier: Apache-2.0
"""A collective that waits, and the one that returns a handle: the same parameters and results."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import pytest
from option_names import taken
from p4reduce import Communicator

STARTS = "_async"
NAMES = [name.removesuffix(STARTS) for name in vars(Communicator) if name.endswith(STARTS)]
WITH_DEADLINE = {"deadline", "at_least", "feedback"}  # for sums that have no handle


def overloads(function: Callable[..., Any]) -> list[inspect.Signature]:
    """The overloads of sums without a deadline."""
    found = typing.get_overloads(inspect.unwrap(function))  # type: ignore[attr-defined]
    return [one for one in map(inspect.signature, found) if "deadline" not in taken(one)]


@pytest.mark.parametrize("name", NAMES)
def test_both_take_and_give_the_same(name: str) -> None:
    waits = inspect.signature(getattr(Communicator, name))
    starts = inspect.signature(getattr(Communicator, name + STARTS))
    ours = {n: kind for n, kind in taken(waits).items() if n not in WITH_DEADLINE}
    theirs = taken(starts)
    if name == "allgather":  # `counts` has to be given: to exchange them would wait
        assert ours.pop("counts") != theirs.pop("counts")
    assert ours == theirs
    assert starts.return_annotation == f"Handle[{waits.return_annotation}]"


@pytest.mark.skipif(not hasattr(typing, "get_overloads"), reason="needs Python 3.11")
def test_overloads_of_both_are_the_same() -> None:
    waits, starts = overloads(Communicator.allreduce), overloads(Communicator.allreduce_async)
    assert len(waits) > 1
    assert [taken(one) for one in waits] == [taken(one) for one in starts]
    given = [f"Handle[{one.return_annotation}]" for one in waits]
    assert given == [one.return_annotation for one in starts]
