# SPDX-License-Identifier: Apache-2.0
"""Clones by sessions that a controller sets up (programs/replay.p4), here and in BMv2."""

from __future__ import annotations

from typing import Any

import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4rt_client import DELETE, INSERT
from p4rt_fixtures import CPU_PORT
from test_pipeline_replay import (
    CLONE_EGRESS,
    CLONE_INGRESS,
    EGRESS_CLONE,
    INGRESS_CLONE,
    MULTICAST,
    OTHER_LIST,
    RECIRCULATE,
    RESUBMIT,
    frame,
    report,
)
from two_targets import Start, exchange

pytest_plugins = ("two_targets",)


def session(number: int, instance: int) -> Any:
    replica = {"egress_port": CPU_PORT, "instance": instance}
    return p4rt.CloneSessionEntry(session_id=number, replicas=[replica])


@pytest.mark.parametrize(
    ("what", "kind", "length", "kept", "value"),
    [
        (CLONE_INGRESS, INGRESS_CLONE, 40, b"\1\0\0\0", 0x100),
        (CLONE_INGRESS | OTHER_LIST, INGRESS_CLONE, 40, b"\1\2\0\0", 0x100),
        (CLONE_INGRESS | MULTICAST, INGRESS_CLONE, 40, b"\1\0\0\0", 0x100),
        (CLONE_INGRESS | RESUBMIT, INGRESS_CLONE, 40, b"\1\0\0\0", 0x100),
        (CLONE_EGRESS, EGRESS_CLONE, 56, b"\1\x12\0\0", 0x201),
        (CLONE_EGRESS | RECIRCULATE, EGRESS_CLONE, 56, b"\1\x12\0\0", 0x201),
    ],
)
def test_clone(start: Start, what: int, kind: int, length: int, kept: bytes, value: int) -> None:
    client = start("replay")
    client.write((INSERT, session(7, 30)))
    wanted = report(kind, CPU_PORT, ingress=0, rid=30, length=length, kept=kept)
    assert exchange(client, frame(what)) == wanted + frame(what, value=value)
    client.write((DELETE, session(7, 30)), (INSERT, session(8, 31)))
    # The session is gone, the other one is not asked for: only the last of these comes back.
    client.send(packet={"payload": frame(what)})
    out = exchange(client, frame(what, session=8))
    assert (out[8:10], out[18:20]) == (b"\0\x1f", frame(what, session=8)[2:4])
