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


def dealer_of_two(*, shares_link: bool = True) -> Dealer:
    return Dealer(cast(Any, [SimpleNamespace(world_size=2, shares_link=shares_link)] * 2))


def places(dealer: Dealer, call: CollectivePlan[Any]) -> list[tuple[int, int] | None]:
    """Start a call; return each part's switch, and how many calls were cut before it."""
    deal = dealer.deal([call])
    deal.keep()
    found = [part.place for part in deal.parts]
    return [place and (place.switch, place.before) for place in found]


def test_each_part_knows_its_switch_and_what_was_cut_before() -> None:
    dealer = dealer_of_two()
    assert places(dealer, plan(100)) == [(0, 0), (1, 0)]
    assert places(dealer, plan(3)) == [None]  # one switch has all of it
    assert places(dealer, plan(100)) == [(0, 1), (1, 1)]


def test_urgent_calls_overtake_others_and_have_no_place() -> None:
    dealer = dealer_of_two()
    assert places(dealer, plan(100, priority=1)) == [None, None]
    assert places(dealer, plan(100)) == [(0, 0), (1, 0)]


def test_a_call_that_is_not_made_does_not_count() -> None:
    dealer = dealer_of_two()
    dealer.deal([plan(100)])  # and not kept
    assert places(dealer, plan(100)) == [(0, 0), (1, 0)]


def test_switches_with_links_of_their_own_leave_nothing_to_others() -> None:
    dealer = dealer_of_two(shares_link=False)
    assert places(dealer, plan(100)) == [None, None]
