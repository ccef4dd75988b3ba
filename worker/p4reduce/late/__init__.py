# SPDX-License-Identifier: Apache-2.0
"""Ranks that are late: sums that do not wait for them, and gradient coding.

A thread of each rank takes part in every sum, with the rank's numbers or with none (`attendant`).
`duties` has its rules, without the thread. Before each sum, all of them tell each other whether
they have numbers to give (`roll`). So all know the members (`policies`), and a late rank finds the
sums that it missed. `allreduce(deadline=)` goes through `sums`; `coding` is fractional repetition.
docs/late.md has the guarantees and the costs. Imports `tensors` and `wire`; `communicator` is made
with it.
"""

from __future__ import annotations

from p4reduce.late.coding import FractionalRepetition
from p4reduce.late.outcome import PartialSum
from p4reduce.late.sums import PartialSums

__all__ = ["FractionalRepetition", "PartialSum", "PartialSums"]
