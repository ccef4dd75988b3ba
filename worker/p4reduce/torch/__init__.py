# SPDX-License-Identifier: Apache-2.0
"""PyTorch on the switch: a backend of `torch.distributed`, and hooks for its data parallelism.

With p4reduce installed beside torch, an unchanged script needs one word::

    torch.distributed.init_process_group("p4reduce")

`statistics` tells which collectives went through the switch and which to Gloo; docs/pytorch.md
has the table.

`registration` makes the name known to torch, `backend` makes a group. `group` has the calls that
torch and DDP make, those of DDP's buckets too; `reductions` hands their tensors to a communicator,
`delegate` hands to Gloo what the switch does not do. `hooks` is only for what a script registers.
More than a dozen modules: torch's interface to a backend (devices, work, futures, options,
rendezvous) has a module for each of its parts. Imports the communicator, `compression`, `tensors`,
`transport` and `wire`, and of the library nothing imports it.
"""

from __future__ import annotations

from p4reduce.torch.statistics import Statistics, Tally, statistics

__all__ = ["Statistics", "Tally", "statistics"]
