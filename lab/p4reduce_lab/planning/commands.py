# SPDX-License-Identifier: Apache-2.0
"""The commands for the planner's proposal."""

from __future__ import annotations

from p4reduce_lab.planning.advice import Advice
from p4reduce_lab.planning.network import LARGEST_FANOUT


def commands(advice: Advice) -> list[str]:
    """Return lines for a shell: a switch, its controller, the ranks; and a try on this machine."""
    cluster = advice.question.cluster
    ranks, slots = cluster.ranks, advice.pool.slots
    if ranks > LARGEST_FANOUT:
        return [
            "# docs/scale.md: how to write the file of a tree",
            "p4reduce-controller serve --topology net.toml",
            f"# in the script: p4reduce.init(slots={slots})",
        ]
    several = advice.best.switches if "side by side" in advice.best.name else 1
    if cluster.trunk is not None:
        switch = f"p4reduce-switch --port 1-{ranks}=udp:0.0.0.0:7001"
        interface = "udp:SWITCH:7001+{rank}"
    else:
        ports = " ".join(f"--port {port}=eth{port}" for port in range(1, min(ranks, 3) + 1))
        switch = f"p4reduce-switch {ports}" + (" …" if ranks > 3 else "")
        interface = "eth0"
    if several > 1:
        named = " ".join(f"--switch s{number}=HOST{number}:9559" for number in range(several))
        if several > 4:
            named = f"--switch s0=HOST0:9559 … --switch s{several - 1}=HOST{several - 1}:9559"
        interfaces = interface if cluster.trunk is not None else "eth0,eth1" + ",…" * (several > 2)
        return [
            f"{switch} --grpc-addr 0.0.0.0:9559  # on {several} machines; TLS: docs/security.md",
            f"p4reduce-controller serve {named} --ports 1-{ranks}",
            f"P4REDUCE_INTERFACE='{interfaces}' P4REDUCE_CONTROLLER=… python train.py  # each rank",
            f"# in the script: p4reduce.init(slots={slots})",
        ]
    return [
        f"{switch} --grpc-addr unix:/tmp/p4r/switch.sock",
        f"p4reduce-controller serve --switch unix:/tmp/p4r/switch.sock --ports 1-{ranks}",
        f"P4REDUCE_INTERFACE='{interface}' P4REDUCE_CONTROLLER=… python train.py  # on each rank",
        f"# in the script: p4reduce.init(slots={slots})",
        f"p4reduce-lab exec -n {min(ranks, 8)} -- python train.py  # a try on this machine",
    ]
