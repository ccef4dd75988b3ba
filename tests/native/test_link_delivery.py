# SPDX-License-Identifier: Apache-2.0
"""Frames come out of a link as they went in, in order, whatever their lengths and numbers."""

from __future__ import annotations

import select

import numpy as np
import pytest
from fuzzing import Fuzz
from link_ends import (
    NO_LINKS,
    link,
    random_frames,
    receive_all,
    send_some,
)
from p4reduce.wire.format import FRAME_STRIDE
from p4reduce.wire.frames import MAX_FRAME_BYTES, FrameBuffer
from p4reduce_native.c_header import CHeader
from p4reduce_native.library import runtime
from p4reduce_native.link import MAX_FRAMES, MESSAGE_FRAMES, UNIX_KINDS, Link, LinkKind

pytestmark = pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))

KINDS = list(UNIX_KINDS)
BATCHES = [0, 1, 2, 63, 64, 65, 200]


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("kind", "slots"),
    [(LinkKind.SINGLE, 0), *((LinkKind.SHARED, n) for n in (1, 2, 8, 512))],
)
def test_random_frames_in_random_batches_both_ways(kind: LinkKind, slots: int, fuzz: Fuzz) -> None:
    generator = fuzz.random
    with link(kind, slots) as ends:
        for _ in fuzz.rounds(3):
            frames = [random_frames(generator, 200) for _ in ends]
            left = [list(each) for each in frames]
            came: list[list[bytes]] = [[], []]  # from each end
            while came != frames:
                for here in (0, 1):
                    part = left[here][: generator.choice(BATCHES)]
                    del left[here][: send_some(ends[here], part)]
                    if generator.random() < 0.7:
                        came[here] += ends[1 - here].receive()
                    assert came[here] == frames[here][: len(came[here])]
        assert ends[0].counts.rx_frames == ends[1].counts.tx_frames > 512  # so rings wrapped
        assert ends[0].counts.rx_bytes == ends[1].counts.tx_bytes


def look(end: Link, most: int = 64) -> list[int]:
    """The lengths of what is there, by the call of the worker's loop; all of it is taken."""
    library = CHeader("link/link.h").functions(runtime())
    rows, lengths = np.zeros((most, 2048), np.uint8), np.zeros(most, np.int64)
    frames = np.zeros(most, np.uint64)
    count = library.p4r_link_look(
        end.pointer, rows.ctypes.data, 2048, 2048, 78, lengths.ctypes.data, frames.ctypes.data, most
    )
    assert count >= 0
    library.p4r_link_drop(end.pointer, count)
    return list(map(int, lengths[:count]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_to_receive_counts_alike(kind: LinkKind) -> None:
    lengths = [14, 1102, 2048]
    frames = [b"f" * length for length in lengths]
    rows, into = np.zeros((64, 2048), np.uint8), np.zeros(64, np.int64)
    with link(kind) as (switch, worker):
        assert switch.send(frames) == 3
        assert receive_all(worker, 3) == frames
        assert (worker.counts.rx_frames, worker.counts.rx_bytes) == (3, sum(lengths))
        assert switch.send(frames) == 3
        assert worker.receive_rows(rows.ctypes.data, 2048, 2048, into.ctypes.data, 64) == 3
        assert (worker.counts.rx_frames, worker.counts.rx_bytes) == (6, 2 * sum(lengths))
        assert switch.send(frames) == 3
        assert look(worker) == lengths
        assert (worker.counts.rx_frames, worker.counts.rx_bytes) == (9, 3 * sum(lengths))


@pytest.mark.parametrize("kind", KINDS)
def test_full_is_neither_loss_nor_error(kind: LinkKind) -> None:
    frames = [i.to_bytes(4, "big") * 275 for i in range(12000)]
    with link(kind) as (switch, worker):
        taken = 0
        while sent := send_some(worker, frames[taken : taken + 100]):
            taken += sent
        assert MESSAGE_FRAMES < taken < len(frames)
        if kind == LinkKind.SHARED:
            assert taken == 256
        assert receive_all(switch, taken) == frames[:taken]
        assert send_some(worker, frames[taken : taken + 3]) == 3
        assert receive_all(switch, 3) == frames[taken : taken + 3]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_readable_as_long_as_there_are_frames(kind: LinkKind) -> None:
    """As level-triggered epoll wants it, though rings ring their doorbell once."""
    with link(kind) as (switch, worker):
        poll = select.poll()
        poll.register(switch.fileno(), select.POLLIN)
        for count in (1, 64, 120):
            frames = [bytes([i]) * 100 for i in range(count)]
            assert worker.send(frames) == count
            came: list[bytes] = []
            while poll.poll(0):
                came += switch.receive()
            assert came == frames


@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_bad_length_are_counted_and_left_out(kind: LinkKind) -> None:
    with link(kind) as (switch, worker):
        frames = [b"s" * 13, b"a" * 14, b"", b"l" * 2049, b"b" * 2048, b"s"]
        assert worker.send(frames) == len(frames)
        assert worker.counts.tx_bad_length == 2
        assert receive_all(switch, 4) == [b"s" * 13, b"a" * 14, b"b" * 2048, b"s"]
        assert switch.counts.rx_too_short == 0
        assert (switch.counts.rx_frames, switch.counts.rx_bytes) == (4, 14 + 14 + 2048)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.fuzz
def test_rows(kind: LinkKind, fuzz: Fuzz) -> None:
    generator = fuzz.random
    with link(kind) as (switch, worker):
        out, into = FrameBuffer(256), FrameBuffer(MAX_FRAMES)
        for _ in fuzz.rounds(10):
            frames = [f[:MAX_FRAME_BYTES] for f in random_frames(generator, 256)]
            for row, frame in enumerate(frames):
                out.put(row, frame)
            rows = np.array(generator.sample(range(256), 60))
            assert (
                worker.send_rows(
                    out.address, FRAME_STRIDE, out.lengths.ctypes.data, rows.ctypes.data, 60
                )
                == 60
            )
            assert receive_all(switch, 60) == [frames[row] for row in rows]
            # Into rows, where a frame that is too long is cut off, and the row behind is whole.
            assert switch.send([b"L" * 2048, *frames[:50]]) == 51
            into.frames[:] = 0
            count = 0
            while count < 51:
                got = worker.receive_rows(
                    into.address + count * FRAME_STRIDE,
                    FRAME_STRIDE,
                    MAX_FRAME_BYTES,
                    into.lengths[count:].ctypes.data,
                    MESSAGE_FRAMES,
                )
                assert got >= 0
                count += got
            assert into.get(0) == b"L" * MAX_FRAME_BYTES
            assert [into.get(row) for row in range(1, 51)] == frames[:50]


def test_a_receive_with_too_little_room_is_refused() -> None:
    with link(LinkKind.SINGLE) as (_, worker):
        assert worker.receive_rows(0, FRAME_STRIDE, MAX_FRAME_BYTES, 0, MESSAGE_FRAMES - 1) == -22
