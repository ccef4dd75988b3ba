# SPDX-License-Identifier: Apache-2.0
"""Clone, resubmit, recirculate and truncate (programs/replay.p4)."""

from __future__ import annotations

import struct

import pytest
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.clone_sessions import CloneSession, CloneSessions
from p4reduce_switch.state.errors import AlreadyThereError, NotThereError
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.replay import MAX_REPLAYS
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")

CLONE_INGRESS, CLONE_EGRESS, RESUBMIT, RECIRCULATE = 1, 2, 4, 8
TRUNCATE_IN_INGRESS, TRUNCATE_IN_EGRESS, OTHER_LIST, MULTICAST = 16, 32, 64, 128
NORMAL, INGRESS_CLONE, EGRESS_CLONE, REPLICATION = 0, 1, 2, 5
RECIRCULATED, RESUBMITTED = 4, 6

PAYLOAD = b"payload of thirty-two bytes here"


@pytest.fixture
def pipeline() -> Pipeline:
    pipeline = load("replay")
    pipeline.clone_sessions.insert(7, CloneSession((Replica(3, 30), Replica(4, 40))))
    pipeline.clone_sessions.insert(8, CloneSession((Replica(3, 1),), packet_length_bytes=21))
    pipeline.multicast.insert(5, [Replica(1, 10), Replica(2, 20)])
    return pipeline


def frame(what: int, count: int = 0, session: int = 7, value: int = 0) -> bytes:
    return struct.pack(">BBHI", what, count, session, value) + PAYLOAD


def report(
    type_: int, port: int, *, ingress: int = 9, rid: int = 0, length: int = 40, kept: bytes
) -> bytes:
    """What egress puts in front; `kept` is a, b, c and the instance type seen by ingress."""
    return struct.pack(">IHHHH", type_, ingress, port, rid, length) + kept


def test_plain(pipeline: Pipeline) -> None:
    wanted = report(NORMAL, 1, kept=b"\1\2\3\0") + frame(0, value=0x101)
    assert pipeline.process(9, frame(0)) == [(1, wanted)]


@pytest.mark.parametrize(("flag", "b"), [(0, 0), (OTHER_LIST, 2)])
def test_clone_from_ingress_is_the_frame_as_it_came_in(
    pipeline: Pipeline, flag: int, b: int
) -> None:
    what = CLONE_INGRESS | flag
    # The field lists keep a, or a and b; their values are those at the end of ingress.
    kept = bytes((1, b, 0, 0))
    assert pipeline.process(9, frame(what)) == [
        (
            port,
            report(INGRESS_CLONE, port, ingress=0, rid=rid, kept=kept) + frame(what, value=0x100),
        )
        for port, rid in ((3, 30), (4, 40))
    ] + [(1, report(NORMAL, 1, kept=b"\1\2\3\0") + frame(what, value=0x101))]
    assert (pipeline.stats.frames_in, pipeline.stats.frames_out) == (1, 3)


def test_clone_goes_out_although_the_packet_is_dropped_or_copied(pipeline: Pipeline) -> None:
    what = CLONE_INGRESS | MULTICAST
    ports = [port for port, _ in pipeline.process(9, frame(what))]
    assert ports == [3, 4, 1, 2]
    pipeline.multicast.delete(5)
    assert [port for port, _ in pipeline.process(9, frame(what))] == [3, 4]
    assert pipeline.stats.dropped_no_replica == 1


def test_clone_from_egress_has_the_headers_as_egress_left_them(pipeline: Pipeline) -> None:
    what = CLONE_EGRESS
    first, *clones = pipeline.process(9, frame(what))
    assert first == (1, report(NORMAL, 1, kept=b"\1\2\3\0") + frame(what, value=0x101))
    # The report header is 16 bytes, and there already: its length counts.
    assert clones == [
        (
            port,
            report(EGRESS_CLONE, port, ingress=0, rid=rid, length=56, kept=b"\1\x12\0\0")
            + frame(what, value=0x201),
        )
        for port, rid in ((3, 30), (4, 40))
    ]


def test_every_copy_is_cloned(pipeline: Pipeline) -> None:
    ports = [port for port, _ in pipeline.process(9, frame(CLONE_EGRESS | MULTICAST))]
    assert ports == [1, 2, 3, 4, 3, 4]


@pytest.mark.parametrize("what", [CLONE_INGRESS, CLONE_EGRESS])
def test_session_that_is_not_there(pipeline: Pipeline, what: int) -> None:
    assert [port for port, _ in pipeline.process(9, frame(what, session=6))] == [1]
    # simple_switch looks at 15 bits of the id only.
    assert len(pipeline.process(9, frame(what, session=0x8007))) == 3


@pytest.mark.parametrize("what", [CLONE_INGRESS, CLONE_EGRESS])
def test_session_with_a_length(pipeline: Pipeline, what: int) -> None:
    lengths = {port: len(out) for port, out in pipeline.process(9, frame(what, session=8))}
    assert lengths == {1: 56, 3: 21}


def test_resubmit_starts_over_with_the_fields_that_are_kept(pipeline: Pipeline) -> None:
    # `a` is kept and counts the rounds; the frame is always the one that came in.
    ((port, out),) = pipeline.process(9, frame(RESUBMIT, count=3))
    kept = bytes((4, 2, 3, RESUBMITTED))
    wanted = report(NORMAL, 1, ingress=0, kept=kept) + frame(RESUBMIT, count=3, value=0x101)
    assert (port, out) == (1, wanted)
    assert (pipeline.stats.frames_in, pipeline.stats.frames_out) == (1, 1)


def test_resubmit_takes_precedence_over_multicast_but_not_over_clone(pipeline: Pipeline) -> None:
    what = RESUBMIT | MULTICAST | CLONE_INGRESS
    frames = pipeline.process(9, frame(what, count=1))
    assert [port for port, _ in frames] == [3, 4, 3, 4, 1, 2]


def test_recirculate_starts_over_with_the_frame_that_would_go_out(pipeline: Pipeline) -> None:
    ((port, out),) = pipeline.process(9, frame(RECIRCULATE, count=2))
    kept = bytes((1, 2, 3, RECIRCULATED))
    wanted = report(NORMAL, 1, ingress=0, kept=kept) + frame(RECIRCULATE, value=0x303)
    assert (port, out) == (1, wanted)


def test_rounds_are_limited(pipeline: Pipeline) -> None:
    assert len(pipeline.process(9, frame(RECIRCULATE, count=255))) == 1
    # Clones that are cloned without end, two of each.
    frames = pipeline.process(9, frame(CLONE_EGRESS, count=255))
    assert len(frames) == 1 + MAX_REPLAYS
    assert pipeline.stats.dropped_replay == 2 + MAX_REPLAYS
    assert len(pipeline.process(9, frame(0))) == 1


def test_truncate(pipeline: Pipeline) -> None:
    full = report(NORMAL, 1, kept=b"\1\2\3\0") + frame(TRUNCATE_IN_INGRESS, value=0x101)
    # The least of the lengths counts, wherever it was given.
    assert pipeline.process(9, frame(TRUNCATE_IN_INGRESS)) == [(1, full[:20])]
    both = TRUNCATE_IN_INGRESS | TRUNCATE_IN_EGRESS
    for what, length in ((TRUNCATE_IN_EGRESS, 25), (both, 20)):
        ((_, out),) = pipeline.process(9, frame(what))
        assert len(out) == length
    # As in BMv2 copies are not cut for what ingress asked.
    lengths = [len(out) for _, out in pipeline.process(9, frame(TRUNCATE_IN_INGRESS | MULTICAST))]
    assert lengths == [56, 56]


def test_short_frame(pipeline: Pipeline) -> None:
    ((_, out),) = pipeline.process(9, b"\xff\xff\0")
    assert out == report(NORMAL, 1, length=3, kept=b"\1\2\3\0") + b"\xff\xff\0"


def test_sessions() -> None:
    sessions = CloneSessions()
    session = CloneSession((Replica(1, 1),), 2, 100)
    sessions.insert(0, session)
    with pytest.raises(AlreadyThereError):
        sessions.insert(0, session)
    sessions.modify(0, CloneSession(()))
    assert sessions.get(0) == CloneSession(())
    assert sessions.all() == {0: CloneSession(())}
    sessions.delete(0)
    for operation in (sessions.delete, sessions.get):
        with pytest.raises(NotThereError):
            operation(0)
    with pytest.raises(NotThereError):
        sessions.modify(0, session)
    for bad_id in (-1, 0x8000):
        with pytest.raises(ValueError, match=r"0\.\.32767"):
            sessions.insert(bad_id, session)
    with pytest.raises(ValueError, match=r"0\.\.65535"):
        sessions.insert(1, CloneSession((Replica(1, 65536),)))
    with pytest.raises(ValueError, match="not -1"):
        sessions.insert(1, CloneSession((), packet_length_bytes=-1))
    assert sessions.all() == {}
