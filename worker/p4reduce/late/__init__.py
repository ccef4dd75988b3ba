# SPDX-License-Identifier: Apache-2.0
"""Sums that do not wait for late ranks, and gradient coding.

A thread of each rank takes part in every sum, with the rank's numbers or without (`rank_proxy`);
`proxy_protocol` has its rules. Before each sum, these threads exchange who has numbers to give
(`negotiation`). So all know the members (`policies`), and a late rank finds the sums it missed.
`allreduce(deadline=)` uses `sums`; `coding` is fractional repetition. docs/late.md has the
guarantees and the costs. Imports `tensors` and `wire`; `communicator` imports it.
"""

from __future__ import annotations

from p4reduce.late.coding import FractionalRepetition
from p4reduce.late.outcome import PartialSum
from p4reduce.late.sums import PartialSums

__all__ = ["FractionalRepetition", "PartialSum", "PartialSums"]
