# SPDX-License-Identifier: Apache-2.0
"""PyTorch on the switch: a backend of `torch.distributed`, and hooks for its data parallelism.

With p4reduce installed beside torch, an unchanged script needs one word:

    torch.distributed.init_process_group("p4reduce")

`statistics` counts which collectives went through the switch and which to Gloo; docs/pytorch.md
has the table.

`registration` makes the name known to torch, `backend` makes a group. `group` has the calls that
torch and DDP make, those of DDP's buckets too; `reductions` hands their tensors to a communicator,
`delegate` hands to Gloo what the switch does not do. `hooks` is only for what a script registers,
`LocalSGD` for scripts that average models in place of gradients, and
`LayerOrder` for those whose layers wait for their own gradient only. `log_statistics` writes
each step's figures to TensorBoard, MLflow or wandb. After a lost rank `reform` continues with the
others, and `ft` is torchft's process group.
More than a dozen modules: torch's interface to a backend (devices, work, futures, options,
rendezvous) has a module for each of its parts. Imports the communicator, `compression`, `control`,
`session`, `switches`, `tensors`, `transport` and `wire`, and of the library nothing imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from p4reduce.torch.statistics import Statistics, Tally, statistics

if TYPE_CHECKING:
    from p4reduce.torch.layer_order import LayerOrder
    from p4reduce.torch.local_sgd import LocalSGD
    from p4reduce.torch.logged import log_statistics
    from p4reduce.torch.regrouping import reform

__all__ = [
    "LayerOrder",
    "LocalSGD",
    "Statistics",
    "Tally",
    "log_statistics",
    "reform",
    "statistics",
]


def __getattr__(name: str) -> Any:
    # torch imports this package at its own import, before what this needs of torch is there.
    if name == "LayerOrder":
        from p4reduce.torch.layer_order import LayerOrder

        return LayerOrder
    if name == "LocalSGD":
        from p4reduce.torch.local_sgd import LocalSGD

        return LocalSGD
    if name == "reform":
        from p4reduce.torch.regrouping import reform

        return reform
    if name == "log_statistics":
        from p4reduce.torch.logged import log_statistics

        return log_statistics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
