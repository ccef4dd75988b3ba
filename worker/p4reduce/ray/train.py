# SPDX-License-Identifier: Apache-2.0
"""`P4ReduceConfig`: Ray Train's PyTorch with its gradients summed by the switch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend

from p4reduce.arrangement import SWITCHES
from p4reduce.launch import LEASE
from p4reduce.ray.reporting import begin
from p4reduce.torch.names import NAME


@dataclass
class P4ReduceConfig(TorchConfig):
    """The `torch_config` of a `TorchTrainer`: Ray's `TorchConfig`, and these settings.

    Attributes:
        backend: of `torch.distributed`: "p4reduce", or "cpu:p4reduce,cuda:nccl".
        switches: which hosts run a switch, as `P4REDUCE_SWITCHES`. "": what that says in the
            workers, or each; of more than 64 ranks the first.
        lease: seconds that a worker may be silent before it is lost. 0: those of
            `P4REDUCE_LEASE`, or 10.
    """

    backend: str | None = NAME
    switches: str = ""
    lease: float = 0.0

    @property
    def backend_cls(self) -> type[_RayBackend]:
        """The class that Ray Train creates in its controller."""
        return _RayBackend

    def to_dict(self) -> dict[str, Any]:
        """The configuration as a dict, for Ray's exports."""
        return {**super().to_dict(), "switches": self.switches, "lease": self.lease}


class _RayBackend(_TorchBackend):
    """Lets the workers start a network with their process group."""

    def on_start(self, worker_group: Any, backend_config: P4ReduceConfig) -> None:
        """Make the process group. Raises P4ReduceError: the network does not start."""
        given = {
            SWITCHES: backend_config.switches,
            LEASE: f"{backend_config.lease:g}" if backend_config.lease else "",
        }
        worker_group.execute(_set_variables, {name: text for name, text in given.items() if text})
        super().on_start(worker_group, backend_config)
        worker_group.execute(begin)


def _set_variables(variables: Mapping[str, str]) -> None:
    os.environ.update(variables)
