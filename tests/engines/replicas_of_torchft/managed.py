# SPDX-License-Identifier: Apache-2.0
"""A replica's Manager, whose state is a network and its optimizer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torchft import Manager


def manager_of(
    group: Any, store: Any, number: int, network: Any, inner: Any, timeout: timedelta, **more: Any
) -> Any:
    """Make a Manager of torchft.

    Args:
        group: of the replica.
        store: of this process; lives as long as the Manager.
        number: of the replica.
        network, inner: what a replica that comes back gets of another one.
        timeout: of the Manager's steps.
        more: further arguments of `Manager`.
    """

    def load(state: dict[str, Any]) -> None:
        network.load_state_dict(state["network"])
        inner.load_state_dict(state["inner"])

    return Manager(
        pg=group,
        min_replica_size=2,
        state_dict=lambda: {"network": network.state_dict(), "inner": inner.state_dict()},
        load_state_dict=load,
        replica_id=f"replica-{number}",
        timeout=timeout,
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        **more,
    )
