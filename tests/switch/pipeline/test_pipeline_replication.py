# SPDX-License-Identifier: Apache-2.0
"""From ingress to the copies that go out (programs/replication.p4)."""

from __future__ import annotations

import struct

import pytest
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.errors import AlreadyThereError, NotThereError
from p4reduce_switch.state.multicast import MulticastGroups, Replica
from pipeline_programs import config, load, make

pytestmark = pytest.mark.usefixtures("engine")

DROP, DROP_ODD, GROW_768, GROW_512, REMOVE, GROW_256 = 1, 2, 4, 8, 16, 32
NORMAL, REPLICATION = 0, 5


@pytest.fixture
def pipeline() -> Pipeline:
    pipeline = load("replication")
    pipeline.multicast.insert(9, [Replica(1, 10), Replica(2, 11), Replica(2, 12), Replica(510, 13)])
    return pipeline


def frame(port: int, group: int = 0, flags: int = 0, value: int = 0) -> bytes:
    return struct.pack(">HHI", port << 7 | flags, group, value) + b"payload"


def report(rid: int, port: int, kind: int, length: int) -> bytes:
    return struct.pack(">HHIII", rid, port, kind, length, 0)


def test_unicast(pipeline: Pipeline) -> None:
    sent = frame(5, value=40)
    # ingress adds 1 into metadata, egress another 1; egress starts with egress_spec 0.
    assert pipeline.process(3, sent) == [(5, report(0, 5, NORMAL, 15) + frame(5, value=42))]


def test_each_copy_starts_from_the_same_state(pipeline: Pipeline) -> None:
    copies = pipeline.process(3, frame(5, group=9, value=40))
    after = frame(5, group=9, value=42)
    assert copies == [
        (port, report(rid, port, REPLICATION, 15) + after)
        for port, rid in ((1, 10), (2, 11), (2, 12), (510, 13))
    ]


def test_multicast_goes_before_unicast_even_to_the_drop_port(pipeline: Pipeline) -> None:
    assert len(pipeline.process(3, frame(511, group=9))) == 4


def test_drop_port(pipeline: Pipeline) -> None:
    assert pipeline.process(3, frame(511)) == []
    assert pipeline.stats.dropped_ingress == 1


def test_mark_to_drop_also_takes_back_multicast(pipeline: Pipeline) -> None:
    assert pipeline.process(3, frame(5, group=9, flags=DROP)) == []
    assert pipeline.stats.dropped_ingress == 1


def test_another_drop_port() -> None:
    pipeline = make(config("replication"), drop_port=400)
    assert pipeline.process(3, frame(400)) == []
    assert [port for port, _ in pipeline.process(3, frame(511))] == [511]
    assert pipeline.process(3, frame(5, flags=DROP)) == []
    ((_, out),) = pipeline.process(3, frame(5))
    assert out[12:16] == (401).to_bytes(4, "big")


def test_drop_in_egress_drops_one_copy(pipeline: Pipeline) -> None:
    copies = pipeline.process(3, frame(5, group=9, flags=DROP_ODD))
    assert [(port, out[:2]) for port, out in copies] == [(1, b"\0\x0a"), (2, b"\0\x0c")]
    assert pipeline.stats.dropped_egress == 2
    assert (pipeline.stats.frames_in, pipeline.stats.frames_out) == (1, 2)


def test_group_that_is_not_there_or_empty(pipeline: Pipeline) -> None:
    pipeline.multicast.insert(4, [])
    assert pipeline.process(3, frame(5, group=3)) == []
    assert pipeline.process(3, frame(5, group=4)) == []
    assert pipeline.stats.dropped_no_replica == 2


def test_header_removed_in_egress(pipeline: Pipeline) -> None:
    assert pipeline.process(3, frame(5, flags=REMOVE)) == [
        (5, report(0, 5, NORMAL, 15) + b"payload")
    ]


def test_packet_length_in_egress_follows_added_and_removed_headers(pipeline: Pipeline) -> None:
    ((_, out),) = pipeline.process(3, frame(5, flags=GROW_256))
    head, payload = frame(5, flags=GROW_256, value=2)[:8], b"payload"
    assert out == report(0, 5, NORMAL, 15 + 256) + head + bytes(256) + payload


def test_growth_of_512_bytes_passes_and_more_is_dropped(pipeline: Pipeline) -> None:
    ((_, out),) = pipeline.process(3, frame(5, flags=GROW_512))
    head = frame(5, flags=GROW_512, value=2)[:8]
    assert out == head + bytes(256) + bytes(255) + b"\1" + b"payload"
    assert pipeline.process(3, frame(5, flags=GROW_768)) == []
    assert pipeline.process(3, frame(5, group=9, flags=GROW_768)) == []
    assert pipeline.stats.dropped_growth == 5
    assert pipeline.stats.frames_out == 1


def test_groups() -> None:
    groups = MulticastGroups()
    groups.insert(1, (Replica(1, 1),))
    with pytest.raises(AlreadyThereError):
        groups.insert(1, ())
    groups.modify(1, [Replica(2, 2)])
    assert groups.get(1) == (Replica(2, 2),)
    assert groups.all() == {1: (Replica(2, 2),)}
    groups.delete(1)
    for operation in (groups.delete, groups.get):
        with pytest.raises(NotThereError):
            operation(1)
    with pytest.raises(NotThereError):
        groups.modify(1, ())
    with pytest.raises(ValueError, match=r"1\.\.65535"):
        groups.insert(0, ())
    with pytest.raises(ValueError, match=r"0\.\.65535"):
        groups.insert(1, [Replica(1, 65536)])
    assert groups.all() == {}
