# SPDX-License-Identifier: Apache-2.0
"""Ranks on two machines with routers between them and the switch: exact, by ordinary users."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from routed_network import USER, routed_network, torchrun_variables, unavailable

REASON = unavailable()
RANKS = 4

# A user's script: all that it needs is in the environment.
SCRIPT = """
import hashlib, json, os, socket, sys
import numpy as np
import p4reduce

try:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    may_open_packets = True
except PermissionError:
    may_open_packets = False
seen = hashlib.sha256()


def expected(every):
    # The sum of four ranks by docs/protocol.md, "Numbers". Links must not round it further.
    blocks = [np.resize(np.append(one, np.zeros(-len(one) % 256)), (-(-len(one) // 256), 256))
              for one in every]
    scale = 2.0 ** (29 - np.frexp(np.abs(blocks).max(axis=(0, 2)))[1])[:, None]
    sums = sum(np.rint(one * scale) for one in blocks).astype(np.float32)
    return (sums / scale).astype(np.float32).ravel()[:len(every[0])]


with p4reduce.init() as comm:
    exact = True
    for size in (1, 256, 5000, 100_000):
        every = [np.arange(size, dtype=np.int32) * (rank + 1) - 7 for rank in range(comm.size)]
        total = comm.allreduce(every[comm.rank])
        exact &= bool((total == sum(every)).all())
        # Floats of few bits, so that their sums are exact as well, and some of many.
        few = [np.random.default_rng([size, rank]).integers(-99, 99, size) / np.float32(64)
               for rank in range(comm.size)]
        few = [numbers.astype(np.float32) for numbers in few]
        total = comm.allreduce(few[comm.rank])
        exact &= bool((total == sum(few)).all())
        many = [np.random.default_rng([size, 1, rank]).standard_normal(size, np.float32)
                for rank in range(comm.size)]
        total = comm.allreduce(many[comm.rank])
        exact &= bool((total == expected(many)).all())
        mean = comm.allreduce(many[comm.rank] * np.float32(1e-38), op="mean")
        seen.update(total.tobytes() + mean.tobytes())
    said = {"rank": comm.rank, "size": comm.size, "job": comm.job, "exact": exact,
            "seen": seen.hexdigest(), "user": os.getuid(), "may_open_packets": may_open_packets,
            "host": socket.gethostname()}
print(json.dumps(said))
"""

# Its router has not told this machine of the narrow hop so far: that must not end the attempt.
FIRST = """
from p4reduce.transport.udp import PythonUdpTransport, UdpTransport
for kind, port in ((PythonUdpTransport, 7001), (UdpTransport, 7002)):
    kind(f"10.9.0.2:{port}").close()
"""


@pytest.mark.root
@pytest.mark.long
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_two_machines_with_routers_between_them_sum_exactly(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with routed_network() as network:
        first = network.start("a", "first", [sys.executable, "-c", FIRST], **network.variables)
        network.wait([first])
        children = [
            network.start(
                machine,
                f"rank-{node * 2 + local_rank}",
                [sys.executable, str(script)],
                **network.variables,
                **torchrun_variables(node, local_rank),
            )
            for node, machine in enumerate("ab")
            for local_rank in range(2)
        ]
        network.wait(children)
        said = [
            json.loads(network.log(f"rank-{rank}").read_text().splitlines()[-1])
            for rank in range(RANKS)
        ]
        log = network.log("switch").read_text()
    assert [one["rank"] for one in said] == list(range(RANKS))
    assert [one["host"] for one in said] == ["a", "a", "b", "b"]
    for one in said:
        assert one["size"] == RANKS
        assert one["job"] == "routed"
        assert one["exact"] is True
        assert one["seen"] == said[0]["seen"], "all ranks have the same bits"
        assert one["user"] == USER
        assert one["may_open_packets"] is False
    # The narrow hop is on no machine's own interface: routers say that it is there.
    sizes = set(re.findall(r"port (\d)=\S+ is up: .* datagrams of up to (\d+) bytes", log))
    assert sizes == {("1", "1452"), ("2", "1452"), ("3", "8972"), ("4", "8972")}, log
