# SPDX-License-Identifier: Apache-2.0
"""A peer that writes anything into shared memory harms nobody but itself."""

from __future__ import annotations

import errno
import mmap
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fuzzing import Fuzz
from link_ends import ALL, HELLO, NO_LINKS, link, receive_all, send_some
from p4reduce_native.library import CSRC
from p4reduce_native.link import Link, LinkKind
from sanitized import SanitizedProgram

pytestmark = pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))

# csrc/link/ring.h: words of a ring, each on a cache line of its own, and what a slot has.
PUT, TAKEN, RECEIVER_SLEEPS, SENDER_SLEEPS, RING_HEAD, SLOT_BYTES = 0, 16, 32, 48, 256, 2112
SLOTS = 8
RING_BYTES = (RING_HEAD + SLOTS * SLOT_BYTES + 4095) & ~4095
FRAME = b"f" * 1102


class Peer:
    """The worker's end by hand: a socket and a view of the memory."""

    def __init__(self, slots: int = SLOTS) -> None:
        here, self.socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.switch = Link.accept(here, ALL, slots)
        self.socket.send(HELLO)
        assert self.switch.receive() == []
        _, (self.file,), _, _ = socket.recv_fds(self.socket, 100, 1)
        self.memory = mmap.mmap(self.file, 0)
        half = len(self.memory) // 2
        self.up = np.frombuffer(self.memory, np.uint32, half // 4)
        self.down = np.frombuffer(self.memory, np.uint32, half // 4, half)
        self.bytes = np.frombuffer(self.memory, np.uint8)

    def put(self, slot: int, length: int, frame: bytes) -> None:
        at = RING_HEAD + slot * SLOT_BYTES
        self.bytes[at : at + 2] = list(length.to_bytes(2, "little"))
        self.bytes[at + 2 : at + 2 + len(frame)] = np.frombuffer(frame, np.uint8)

    def error(self, *, send: bool = True) -> int | None:
        """What a receive of the switch ends with, or a send."""
        try:
            self.switch.receive()
            if send:
                send_some(self.switch, [FRAME])
        except OSError as error:
            return error.errno
        return None

    def close(self) -> None:
        self.switch.close()
        self.socket.close()
        del self.up, self.down, self.bytes
        self.memory.close()
        os.close(self.file)


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def test_the_memory_cannot_change_its_size(peer: Peer) -> None:
    size = os.fstat(peer.file).st_size
    assert size == 2 * RING_BYTES
    for wrong in (0, size - 1, size + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(peer.file, wrong)


@pytest.mark.parametrize("put", [SLOTS + 1, 2**31, 2**32 - 1])
def test_an_index_of_what_cannot_be_ends_the_link(peer: Peer, put: int) -> None:
    peer.up[PUT] = put
    assert peer.error() == errno.EPROTO
    peer.up[PUT] = 0
    assert peer.error() == errno.EPROTO  # and it stays so


@pytest.mark.parametrize("taken", [1, 2**31, 2**32 - SLOTS - 1])
def test_an_index_of_what_was_never_sent_ends_the_link(peer: Peer, taken: int) -> None:
    peer.down[TAKEN] = taken
    assert peer.error() == errno.EPROTO


def test_own_indices_are_not_read_back(peer: Peer) -> None:
    frames = [bytes([i]) * 100 for i in range(6)]
    assert peer.switch.send(frames[:3]) == 3
    peer.down[PUT] = 77
    assert peer.switch.send(frames[3:]) == 3
    assert peer.down[PUT] == 6
    for i in range(4):
        peer.put(i, 20, bytes([i]) * 20)
    peer.up[PUT] = 2
    assert peer.switch.receive() == [bytes([i]) * 20 for i in range(2)]
    peer.up[TAKEN] = 77
    peer.up[PUT] = 4
    assert peer.switch.receive() == [bytes([i]) * 20 for i in range(2, 4)]
    assert peer.up[TAKEN] == 4


@pytest.mark.parametrize(("length", "short", "long"), [(0, 1, 0), (2049, 0, 1), (65535, 0, 1)])
def test_lengths_are_clamped(peer: Peer, length: int, short: int, long: int) -> None:
    peer.put(0, length, FRAME)
    peer.put(1, 14, b"x" * 14)
    peer.up[PUT] = 2
    assert peer.switch.receive() == [b"x" * 14]
    assert peer.switch.counts.rx_too_short == short
    assert peer.switch.counts.rx_too_long == long
    assert peer.switch.counts.rx_frames == 1


@pytest.mark.parametrize("length", [101, 2110, 65535])
def test_nothing_is_written_beyond_the_room_of_a_row(peer: Peer, length: int) -> None:
    room, most = 100, 64
    rows = np.full(2 * 65536, 0xAA, np.uint8)
    lengths = np.zeros(most, np.int64)
    peer.put(0, length, FRAME)
    peer.up[PUT] = 1
    count = peer.switch.receive_rows(rows.ctypes.data, 2048, room, lengths.ctypes.data, most)
    assert (count, lengths[0]) == (1, room)
    assert rows[:room].tobytes() == FRAME[:room]
    assert (rows[room:] == 0xAA).all()


@pytest.mark.parametrize("slot", [0, SLOTS - 1])
@pytest.mark.parametrize("length", [2109, 2110, 2111, 2114, 65535])
def test_nothing_is_read_beyond_a_slot(peer: Peer, slot: int, length: int) -> None:
    """Behind the last one the memory ends, or the other direction begins."""
    most, room = 64, 4096
    rows = np.full((most, room), 0xAA, np.uint8)
    lengths = np.zeros(most, np.int64)
    for at in range(slot):
        peer.put(at, 14, b"x" * 14)
    peer.put(slot, length, FRAME)
    peer.up[PUT] = slot + 1
    count = peer.switch.receive_rows(rows.ctypes.data, room, room, lengths.ctypes.data, most)
    assert count == slot + 1
    assert lengths[slot] == min(length, SLOT_BYTES - 2)
    assert (rows[slot, SLOT_BYTES - 2 :] == 0xAA).all()


def test_a_ring_that_goes_on_after_the_hang_up_comes_to_an_end(peer: Peer) -> None:
    """The memory can be written to by whoever still maps it; the port is free all the same."""
    peer.put(0, 14, b"x" * 14)
    peer.up[PUT] = 5
    peer.socket.close()
    for _ in range(256):
        if peer.error(send=False) == errno.EPIPE:
            break
        peer.up[PUT] += 5
    assert peer.error(send=False) == errno.EPIPE


def test_bells_of_any_size_and_number_are_no_frames(peer: Peer) -> None:
    for length in (1, 8, 14, 1102, 5000):
        peer.socket.send(b"b" * length)
        assert peer.switch.receive() == []
    assert peer.switch.counts.rx_frames == 0


def test_a_doorbell_for_room_that_a_receive_takes_is_not_forgotten(peer: Peer) -> None:
    assert peer.switch.send([FRAME] * (SLOTS + 1)) == SLOTS
    assert peer.down[SENDER_SLEEPS] == 1
    assert not peer.switch.events(frames_wait=True) & select.EPOLLOUT
    peer.down[TAKEN] = SLOTS
    peer.down[SENDER_SLEEPS] = 0
    peer.socket.send(b"!")
    assert peer.switch.receive() == []
    assert peer.switch.events(frames_wait=True) & select.EPOLLOUT  # comes back at once
    assert peer.switch.send([FRAME]) == 1
    assert peer.switch.receive() == []
    assert not peer.switch.events(frames_wait=False) & select.EPOLLOUT


def test_who_never_takes_bells_does_not_block_the_other_end(peer: Peer) -> None:
    sent = 0
    for _ in range(3000):  # more doorbells than a socket holds
        peer.down[RECEIVER_SLEEPS] = 1
        peer.down[TAKEN] = sent
        sent += peer.switch.send([FRAME])
    assert sent == 3000


@pytest.mark.fuzz
def test_garbage_between_honest_links(fuzz: Fuzz) -> None:
    """Other links of the same thread notice nothing."""
    generator = fuzz.random
    with link(LinkKind.SHARED) as (switch, worker):
        for _ in fuzz.rounds(20):
            hostile = Peer(1 << generator.randrange(4))
            for part in range(50):
                hostile.bytes[:256] = fuzz.numpy.integers(0, 2, 256, np.uint8)
                at = generator.randrange(len(hostile.bytes) - 500)
                hostile.bytes[at : at + 500] = fuzz.numpy.integers(0, 256, 500, np.uint8)
                frames = [generator.randbytes(100 + part)] * 3
                assert send_some(worker, frames) == 3
                if hostile.error() is not None:
                    hostile.close()
                    hostile = Peer(1)
                assert receive_all(switch, 3) == frames
            hostile.close()


@pytest.mark.long
@pytest.mark.fuzz
def test_scribbling_under_sanitizers(fuzz: Fuzz, tmp_path: Path) -> None:
    sources = list((CSRC / "link").glob("*.c"))
    SanitizedProgram(tmp_path, "link_fuzz.c", sources, [f"-I{CSRC / 'link'}"]).run(fuzz, 40)
