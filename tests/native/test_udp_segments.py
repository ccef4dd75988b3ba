# SPDX-License-Identifier: Apache-2.0
"""Runs of datagrams in one call (UDP_SEGMENT, UDP_GRO), and the size that a path takes.

At one end a link, at the other a bare socket that says and hears what the test wants.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from link_ends import NO_LINKS
from p4reduce_native.datagrams import pack, unpack
from p4reduce_native.link import Link
from p4reduce_native.udp_handshake import HandshakeResult, never_cut_up
from switch_peer import eventually

pytestmark = pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))

SECONDS = 120.0
TOKEN = b"\x01token\xff\x00"
UDP_SEGMENT, SO_NO_CHECK = 103, 11
FRAMES, PING, PONG, BYE = range(4)
FRAME = bytes(range(256)) * 4 + b"\0" * 78  # 1,102 bytes, as a contribution


class Ends:
    """A link, and the bare socket at its other end."""

    def __init__(self, size: int = 1472, probe_timeout: float = 0.3) -> None:
        one, self.bare = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        for end in (one, self.bare):
            end.bind(("127.0.0.1", 0))
            never_cut_up(end)
        one.connect(self.bare.getsockname())
        self.bare.connect(one.getsockname())
        self.bare.settimeout(SECONDS)
        self.bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.fd = one.fileno()
        self.link = Link.over_datagrams(one, HandshakeResult(TOKEN, size, b"", b""), probe_timeout)

    def close(self) -> None:
        self.link.close()
        self.bare.close()

    def say_run(self, run: bytes, segment: int) -> None:
        """Several datagrams by one call, as the other end's kernel may send them."""
        self.bare.sendmsg([run], [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", segment))])

    def heard(self) -> list[bytes]:
        frames: list[bytes] = []
        while more := self.link.receive():
            frames += more
        return frames

    def frames_at_bare(self, count: int) -> list[bytes]:
        """The next frames; PINGs are left unanswered."""
        frames: list[bytes] = []
        while len(frames) < count:
            datagram = self.bare.recv(65536)
            assert datagram[:8] == TOKEN
            if datagram[8] == FRAMES:
                frames += unpack(datagram[12:], 64)
        return frames


Make = Callable[..., Ends]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Ends] = []

    def one(*arguments: float, **named: float) -> Ends:
        made.append(Ends(*arguments, **named))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for ends in made:
        ends.close()


def datagram(kind: int, body: bytes = b"", token: bytes = TOKEN) -> bytes:
    return token + bytes([kind, 0, 0, 0]) + body


def record(frame: bytes) -> bytes:
    return len(frame).to_bytes(2, "little") + frame


# -- Out -------------------------------------------------------------------------------------------


def test_frames_of_one_length_leave_by_one_call(make: Make) -> None:
    """A call takes 64 KB, so 58 frames."""
    ends = make()
    frames = [bytes([number]) + FRAME[1:] for number in range(116)]
    assert ends.link.send(frames) == 116
    assert ends.frames_at_bare(116) == frames
    assert ends.link.datagram_counts.tx_calls == 1
    assert ends.link.datagram_counts.tx_runs_refused == 0


def test_lengths_that_change_do_not_mix(make: Make) -> None:
    """Each datagram is as if it had been sent alone, whatever is sent beside it."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    ends = make()
    for _ in range(50):
        frames = [
            rng.randbytes(rng.choice([1102, 1102, 1102, 590, 78, 14]))
            for _ in range(rng.randrange(1, 130))
        ]
        done = 0
        while done < len(frames):
            done += ends.link.send(frames[done : done + 128])
        assert ends.frames_at_bare(len(frames)) == frames
        assert ends.link.datagram_counts.tx_runs_refused == 0


def test_a_kernel_that_takes_no_runs_gets_datagrams_one_by_one(make: Make) -> None:
    """As over a tunnel, or by a device that adds no checksums; here: without any checksum."""
    ends = make()
    bare = socket.socket(fileno=ends.fd)
    bare.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
    bare.detach()
    frames = [bytes([number]) + FRAME[1:] for number in range(50)]
    for _ in range(3):
        assert ends.link.send(frames) == 50
        assert ends.frames_at_bare(50) == frames
    assert ends.link.datagram_counts.tx_runs_refused == 1  # then it is left alone for a while


# -- In --------------------------------------------------------------------------------------------


def test_a_run_comes_in_by_one_call(make: Make) -> None:
    ends = make()
    frames = [bytes([number]) + FRAME[1:] for number in range(58)]
    each = [datagram(FRAMES, record(frame)) for frame in frames]
    ends.say_run(b"".join(each), len(each[0]))
    assert ends.heard() == frames
    assert ends.link.datagram_counts.rx_datagrams == 58
    assert ends.link.datagram_counts.rx_calls == 1


@pytest.mark.parametrize("at", [0, 1, 30, 57])
def test_a_stranger_in_the_middle_of_a_run(make: Make, at: int) -> None:
    """The kernel gathers by addresses, which can be forged; each datagram shows its own token."""
    ends = make()
    frames = [bytes([number]) + FRAME[1:] for number in range(58)]
    each = [datagram(FRAMES, record(frame)) for frame in frames]
    each[at] = datagram(FRAMES, record(frames[at]), token=b"\x01token\xff\x01")
    ends.say_run(b"".join(each), len(each[0]))
    assert ends.heard() == frames[:at] + frames[at + 1 :]
    assert ends.link.strangers == 1


@pytest.mark.parametrize("rest", [1, 7, 11, 12, 13, 14, 500, 1115])
def test_a_last_segment_that_is_cut_off(make: Make, rest: int) -> None:
    ends = make()
    one = datagram(FRAMES, record(FRAME))
    ends.say_run(one * 10 + one[:rest], len(one))
    assert ends.heard() == [FRAME] * 10
    assert ends.link.strangers == (rest < 12)
    assert ends.link.counts.rx_too_short == (rest > 12)  # a record that does not fit


@pytest.mark.parametrize("segment", [1, 2, 11, 12, 13, 20, 60, 1400])
def test_segments_of_any_size(make: Make, segment: int) -> None:
    """Garbage in pieces: nothing comes of it, and what is sent then does."""
    ends = make()
    for body in (b"\xff" * 1400, TOKEN * 175, datagram(FRAMES, b"\xff\xff" * 694)):
        ends.say_run(body[: 60 * segment], segment)
    ends.heard()
    assert ends.link.counts.rx_frames == 0
    one = datagram(FRAMES, record(FRAME))
    ends.say_run(one * 3, len(one))
    assert ends.heard() == [FRAME] * 3


def test_random_segments_are_as_many_datagrams(make: Make) -> None:
    """A run is taken as if each of its datagrams had come alone."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(40):
        in_run, alone = make(), make()
        segment = rng.randrange(13, 1400)
        each = []
        for _ in range(rng.randrange(1, 40)):
            body = record(rng.randbytes(rng.randrange(14, 60))) + rng.randbytes(1400)
            token = TOKEN if rng.random() < 0.9 else rng.randbytes(8)
            each.append(datagram(rng.choice([0, 0, 0, 1, 2, 9]), body, token)[:segment])
        each[-1] = each[-1][: rng.randrange(1, segment + 1)]
        in_run.say_run(b"".join(each), segment)
        for one in each:
            alone.bare.send(one)
        assert in_run.heard() == alone.heard()
        assert in_run.link.strangers == alone.link.strangers
        for name, _ in type(in_run.link.counts)._fields_:
            assert getattr(in_run.link.counts, name) == getattr(alone.link.counts, name), name


def test_runs_that_come_together_are_taken_whole(make: Make) -> None:
    """Answers to half of a run would be half of a run."""
    ends = make()
    each = datagram(FRAMES, record(FRAME))
    for _ in range(3):
        ends.say_run(each * 58, len(each))
    counts = []
    while more := ends.link.receive():
        counts.append(len(more))
    assert sum(counts) == 3 * 58
    assert all(count % 58 == 0 for count in counts), counts


def test_many_small_frames_of_a_run_come_in_parts(make: Make) -> None:
    """More than a call gives: the link says that there are more without another event."""
    ends = make()
    small = datagram(FRAMES, b"".join(record(b"x" * 14) for _ in range(60)))
    ends.say_run(small * 60, len(small))
    count = 0
    while more := ends.link.receive():
        count += len(more)
        waits = ends.link.events(frames_wait=False)
        assert bool(waits & 4) == (count < 3600)  # EPOLLOUT: a socket has room, so come back
    assert count == 3600


def test_a_goodbye_in_the_middle_of_a_run(make: Make) -> None:
    ends = make()
    one = datagram(FRAMES, record(b"f" * 14))
    ends.say_run(one * 3 + datagram(BYE).ljust(len(one), b"\0") + one, len(one))
    assert ends.link.receive() == [b"f" * 14] * 4
    with pytest.raises(BrokenPipeError):
        ends.link.receive()


# -- The path --------------------------------------------------------------------------------------


class Path:
    """Answers questions up to a size, as a peer behind a hop that takes no larger datagrams."""

    def __init__(self, ends: Ends, takes: int, *, echoes: bool = True) -> None:
        self.ends, self.takes, self.echoes = ends, takes, echoes
        self.frames: list[bytes] = []
        ends.bare.setblocking(False)

    def go_on(self) -> int:
        """Let some time pass; returns the size that the link has found."""
        self.ends.link.send([FRAME])
        try:
            while True:
                self.hear(self.ends.bare.recv(65536))
        except BlockingIOError:
            pass
        self.ends.link.receive()
        time.sleep(0.001)
        return int(self.ends.link.datagram_counts.path_bytes)

    def hear(self, message: bytes) -> None:
        if len(message) > self.takes:
            return
        if message[8] == PING:
            self.ends.bare.send(datagram(PONG, message[12:20] if self.echoes else b""))
        elif message[8] == FRAMES:
            self.frames += unpack(message[12:], 64)


@pytest.mark.parametrize("takes", [1200, 1452, 8972])
def test_a_path_that_gets_narrow_and_wide_again(make: Make, takes: int) -> None:
    """Found by asking alone, without a word of any router."""
    ends = make(65507, probe_timeout=0.02)
    path = Path(ends, 65507)
    eventually(lambda: ends.link.datagram_counts.rx_datagrams > 2 or path.go_on() < 0, "", SECONDS)
    assert ends.link.datagram_counts.path_bytes == 65507
    path.takes = takes
    eventually(lambda: path.go_on() == takes, "the link has found the size that passes", SECONDS)
    # The way in is as wide as before: frames of one datagram, more than leave in one.
    many = [bytes([number]) * 500 for number in range(60)]
    [(wide, count)] = pack(TOKEN, many, 65507)
    assert count == 60
    ends.bare.send(wide)
    assert ends.heard() == many
    path.takes = 65507
    eventually(lambda: path.go_on() == 65507, "it is wide again", SECONDS)
    assert ends.link.datagram_counts.path_narrowed >= 1
    assert ends.link.datagram_counts.path_widened >= 1


def test_a_path_that_takes_no_frame_is_counted(make: Make) -> None:
    ends = make(1472, probe_timeout=0.02)
    path = Path(ends, 1472)
    eventually(lambda: ends.link.datagram_counts.rx_datagrams > 2 or path.go_on() < 0, "", SECONDS)
    path.takes = 1000
    eventually(
        lambda: path.go_on() == 1200 and ends.link.datagram_counts.path_too_narrow > 0,
        "the link says that the least size has no answer",
        SECONDS,
    )


def test_a_peer_of_the_version_before_answers_without_a_nonce(make: Make) -> None:
    ends = make(8972, probe_timeout=0.02)
    path = Path(ends, 8972, echoes=False)
    for _ in range(300):
        assert path.go_on() == 8972


def test_silence_of_the_peer_does_not_narrow_the_path(make: Make) -> None:
    """It may have been stopped; only where other things come is it the size."""
    ends = make(8972, probe_timeout=0.01)
    path = Path(ends, 0)
    for _ in range(300):
        assert path.go_on() == 8972


def test_a_question_is_answered_with_its_nonce(make: Make) -> None:
    ends = make()
    ends.bare.send(datagram(PING, b"a nonce!" + bytes(1000)))
    assert ends.link.receive() == []
    assert ends.bare.recv(100) == datagram(PONG, b"a nonce!")
    ends.bare.send(datagram(PING))
    assert ends.link.receive() == []
    assert ends.bare.recv(100) == datagram(PONG)


def test_foreign_nonces_change_nothing(make: Make) -> None:
    ends = make(8972, probe_timeout=0.01)
    path = Path(ends, 8972)
    path.takes = 1200

    def lie(message: bytes) -> None:
        if message[8] == PING:
            ends.bare.send(datagram(PONG, message[12:20] if len(message) <= 1200 else b"\0" * 8))

    path.hear = lie  # type: ignore[method-assign]
    eventually(lambda: path.go_on() == 1200, "wrong nonces are no answers", SECONDS)
