# SPDX-License-Identifier: Apache-2.0
"""Which switch gets which part of a call, and what each part knows of the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from p4reduce.switches.dealing import Dealer
from p4reduce.tensors import plans
from p4reduce.tensors.plans import CollectivePlan
from p4reduce.wire.calls import Operation


def plan(blocks: int, priority: int = 0) -> CollectivePlan[Any]:
    array = np.ones(blocks * 256, np.int32)
    found = plans.allreduce(array, Operation.SUM, None, array.copy(), world_size=2)
    return found.with_priority(priority)


def places(dealer: Dealer, one: CollectivePlan[Any]) -> list[tuple[int, int] | None]:
    """Start a call; return each part's switch, and how many calls were cut before it."""
    deal = dealer.deal([one])
    deal.keep()
    found = [part.place for part in deal.parts]
    return [None if one is None else (one.switch, one.before) for one in found]


def test_each_part_knows_its_switch_and_what_was_cut_before() -> None:
    dealer = Dealer(cast(Any, [SimpleNamespace(world_size=2, shares_link=True)] * 2))
    assert places(dealer, plan(100)) == [(0, 0), (1, 0)]
    assert places(dealer, plan(3)) == [None]  # one switch has all of it
    assert places(dealer, plan(100)) == [(0, 1), (1, 1)]


def test_urgent_calls_overtake_others_and_have_no_place() -> None:
    dealer = Dealer(cast(Any, [SimpleNamespace(world_size=2, shares_link=True)] * 2))
    assert places(dealer, plan(100, priority=1)) == [None, None]
    assert places(dealer, plan(100)) == [(0, 0), (1, 0)]


def test_a_call_that_is_not_made_does_not_count() -> None:
    dealer = Dealer(cast(Any, [SimpleNamespace(world_size=2, shares_link=True)] * 2))
    dealer.deal([plan(100)])  # and not kept
    assert places(dealer, plan(100)) == [(0, 0), (1, 0)]


def test_switches_with_links_of_their_own_leave_nothing_to_others() -> None:
    dealer = Dealer(cast(Any, [SimpleNamespace(world_size=2, shares_link=False)] * 2))
    assert places(dealer, plan(100)) == [None, None]
