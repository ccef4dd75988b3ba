# SPDX-License-Identifier: Apache-2.0
"""torchrun on two machines in different networks, the switch and its controller on a third."""

from __future__ import annotations

import sys

import pytest
from routed_network import MACHINES, routed_network, unavailable
from torch_system import PROGRAMS

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

REASON = unavailable()


@pytest.mark.timeout(300)
@pytest.mark.root
@pytest.mark.long
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_torchrun_with_routers_between_its_nodes() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    torchrun += ["--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-id", "routed"]
    torchrun += ["--rdzv-endpoint", f"{MACHINES['a']}:29400"]
    with routed_network() as network:
        nodes = []
        for node, machine in enumerate("ab"):
            # No DNS knows the machines' names here, by which torchrun would call them.
            here = ["--rdzv-conf", f"is_host={1 - node}", "--local-addr", MACHINES[machine]]
            command = [*torchrun, *here, str(PROGRAMS / "hello.py")]
            nodes.append(
                network.start(
                    machine,
                    f"node-{machine}",
                    command,
                    **network.variables,
                    OMP_NUM_THREADS="1",
                    PYTHONUNBUFFERED="1",
                )
            )
        network.wait(nodes)
        output = "".join(network.log(f"node-{machine}").read_text() for machine in "ab")
        log = network.log("switch").read_text()
    for rank in range(4):
        assert f"rank {rank} of 4, attempt 0: 16.0" in output, output
    assert "datagrams of up to 1452 bytes" in log
    assert "datagrams of up to 8972 bytes" in log
