# SPDX-License-Identifier: Apache-2.0
"""PyTorch on the switch: a backend of `torch.distributed`, and hooks for its data parallelism.

With p4reduce installed beside torch, an unchanged script needs one word::

    torch.distributed.init_process_group("p4reduce")

`statistics` tells which collectives went through the switch and which to Gloo; docs/pytorch.md
has the table.

These are more modules than a folder mostly has: each is one step on the way from torch's call to
its future, and parts of that way in folders of their own would import each other both ways.
docs/pytorch.md lists them in their order.
"""

from __future__ import annotations

from p4reduce.torch.statistics import Statistics, Tally, statistics

__all__ = ["Statistics", "Tally", "statistics"]
