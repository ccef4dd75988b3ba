# SPDX-License-Identifier: Apache-2.0
"""Veth pairs: their names."""

from __future__ import annotations

import pytest
from p4reduce_lab.networks import veth
from p4reduce_lab.networks.veth import VethPorts

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(veth.unavailable() is not None, reason=str(veth.unavailable())),
]


@pytest.mark.long
def test_names_of_pairs_that_are_there_are_not_given_again() -> None:
    with VethPorts(1) as kept:
        for _ in range(25):  # there are fewer letters
            with VethPorts(1) as other:
                assert other.switch_side[1] != kept.switch_side[1]
            other.close()  # once more does no harm
