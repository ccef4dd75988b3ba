# SPDX-License-Identifier: Apache-2.0
"""`P4ReduceConfig`: Ray Train's PyTorch with its gradients summed by the switch."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import ray
from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend

from p4reduce.ray.network import RayNetwork
from p4reduce.ray.reporting import begin
from p4reduce.torch.names import NAME

_OWN = ("host", "switches", "tree", "slots", "lease", "logs")


@dataclass
class P4ReduceConfig(TorchConfig):
    """The `torch_config` of a `TorchTrainer`: Ray's `TorchConfig`, and these settings.

    Attributes:
        backend: of `torch.distributed`: "p4reduce", or "cpu:p4reduce,cuda:nccl".
        resources: what each of the two actors, switch and controller, reserves: {"CPU": 1}.
            Empty: nothing, so that they fit beside workers that have all of a host's.
        host: the IP address by which workers reach the host of rank 0. "": Ray's of that host.
        switches: how many side by side. 0: as many as it takes ("Which switches", docs/deploy.md).
        tree: "LxR": a root above L leaves of R ranks each. "": none up to 64 ranks.
        slots: of a job, 1 to 1,024. 0: the default.
        lease: seconds that a worker may be silent before it is lost. 0: those of
            `P4REDUCE_LEASE`, or 10.
        logs: a directory on the host of rank 0 for the logs. "": they go with the network.
    """

    backend: str | None = NAME
    resources: Mapping[str, float] = field(default_factory=dict)
    host: str = ""
    switches: int = 0
    tree: str = ""
    slots: int = 0
    lease: float = 0.0
    logs: str = ""

    @property
    def backend_cls(self) -> type[_Backend]:
        """The class that Ray Train creates in its controller."""
        return _Backend

    def to_dict(self) -> dict[str, Any]:
        """The configuration as a dict, for Ray's exports."""
        own = {name: getattr(self, name) for name in _OWN}
        return {**super().to_dict(), **own, "resources": dict(self.resources)}


class _Backend(_TorchBackend):
    """Starts a network with each group of workers, and ends it with the group."""

    def __init__(self) -> None:
        super().__init__()
        self._network: RayNetwork | None = None

    def on_start(self, worker_group: Any, backend_config: P4ReduceConfig) -> None:
        """Start the network while the workers import, and then make the process group.

        Raises P4ReduceError: the network does not start.
        """
        self._close()
        if len(worker_group) > 1:
            hosts = worker_group.execute(ray.util.get_node_ip_address)
            self._network = RayNetwork(
                hosts,
                resources=backend_config.resources,
                host=backend_config.host,
                switches=backend_config.switches,
                tree=backend_config.tree,
                slots=backend_config.slots,
                lease=backend_config.lease,
                logs=backend_config.logs,
            )
        try:
            imports = worker_group.execute_async(_import)
            if self._network is not None:
                variables = {**self._network.wait(), "P4REDUCE_JOB": f"ray-{secrets.token_hex(6)}"}
                worker_group.execute(_set_variables, variables)
            ray.get(imports)
            super().on_start(worker_group, backend_config)
            worker_group.execute(begin)
        except BaseException:
            self._close()
            raise

    def on_shutdown(self, worker_group: Any, backend_config: P4ReduceConfig) -> None:
        """End the process group, and then the network."""
        try:
            super().on_shutdown(worker_group, backend_config)
        finally:
            self._close()

    def _close(self) -> None:
        network, self._network = self._network, None
        if network is not None:
            network.close()


def _import() -> None:
    # The frames of a join take scapy, and DistributedDataParallel takes torch's compiler. Imported
    # here, they are there when the network is.
    for name in ("p4reduce.torch.backend", "p4reduce.wire.layer", "torch._dynamo"):
        import_module(name)


def _set_variables(variables: Mapping[str, str]) -> None:
    os.environ.update(variables)
