# SPDX-License-Identifier: Apache-2.0
"""Ranks that are late: sums that do not wait for them, and gradient coding.

A thread of each rank takes part in every sum, with the rank's numbers or with none (`attendant`);
what it does is in `duties`, without the thread.
Before each sum all of them tell each other who has numbers to give (`roll`), so that all know who
is in (`policies`), and a rank that comes late finds the sums that it missed. `sums` is what
`allreduce(deadline=)` goes through; `coding` is fractional repetition. docs/late.md has what is
promised and what each costs. Imports `tensors` and `wire`; `communicator` is made with it.
"""

from __future__ import annotations

from p4reduce.late.coding import FractionalRepetition
from p4reduce.late.outcome import PartialSum
from p4reduce.late.sums import PartialSums

__all__ = ["FractionalRepetition", "PartialSum", "PartialSums"]
