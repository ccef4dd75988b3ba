# SPDX-License-Identifier: Apache-2.0
"""Who says what before frames go faster, and that peers of any age understand each other."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from link_ends import ALL, DEADLINE_S, HELLO, NO_LINKS, answering
from link_ends import link as both_ends
from p4reduce.errors import ConfigurationError, SwitchUnreachableError
from p4reduce.transport import LinkTransport, Transport, open_port
from p4reduce.wire.frames import FrameBuffer
from p4reduce_native.link import UNIX_KINDS, Link, LinkKind, offers
from p4reduce_switch.dataplane import DataPlane, open_data_plane
from p4reduce_switch.ports.place import PortSpec
from p4reduce_switch.ports.unix import UnixPlace
from stand_ins import Program, cable

pytestmark = pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))

FRAMES = [bytes([i]) * (14 + 10 * i) for i in range(100)]


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[DataPlane]:
    """A switch at tmp_path/p1 and p2, which joins them by a wire."""
    made = open_data_plane([PortSpec(n, UnixPlace(tmp_path / f"p{n}")) for n in (1, 2)])
    made.start()
    made.run(lambda: made.install(Program(cable)))  # type: ignore[arg-type]
    yield made
    made.stop()


class OlderSwitch:
    """The same, of which a link can do no more than `best`; None: it knows nothing of links."""

    def __init__(self, directory: Path, best: LinkKind | None) -> None:
        self._offers = 0 if best is None else offers(best)
        self._listeners = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        for number, listener in enumerate(self._listeners, start=1):
            listener.bind(os.fspath(directory / f"p{number}"))
            listener.listen()
        self._links: list[Link | None] = [None, None]
        self._held: list[list[bytes]] = [[], []]  # frames for who is not there yet
        self.too_short = [0, 0]
        self._stop = os.eventfd(0, os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        for end in (*self._links, *self._listeners):
            if end is not None:
                end.close()
        os.close(self._stop)

    def _serve(self) -> None:
        while True:
            poll = select.poll()
            poll.register(self._stop, select.POLLIN)
            for listener, link in zip(self._listeners, self._links, strict=True):
                poll.register(listener, select.POLLIN)
                if link is not None:
                    poll.register(link.fileno(), link.events(frames_wait=False))
            ready = dict(poll.poll(DEADLINE_S * 1000))
            if not ready or self._stop in ready:
                return
            for number in (0, 1):
                self._iteration(number, ready)

    def _iteration(self, number: int, ready: dict[int, int]) -> None:
        link, listener = self._links[number], self._listeners[number]
        if link is not None and link.fileno() in ready:
            try:
                self._held[1 - number] += link.receive()
            except BrokenPipeError:
                self._links[number] = None
            self.too_short[number] += link.counts.rx_too_short
            if self._links[number] is None:
                link.close()
        if listener.fileno() in ready:
            peer = listener.accept()[0]
            peer.setblocking(False)
            self._links[number] = Link.accept(peer, self._offers)
        self._pass_on(1 - number)

    def _pass_on(self, number: int) -> None:
        link = self._links[number]
        if link is None:
            return
        try:
            while self._held[number]:
                with suppress(BlockingIOError):
                    del self._held[number][: link.send(self._held[number])]
        except BrokenPipeError:  # a worker that comes again without a hello gets them
            self._links[number] = None
            link.close()


def until_up(switch: DataPlane) -> None:
    """Wait until both ports have their peers: a frame for a port without one is lost."""
    deadline = time.monotonic() + DEADLINE_S
    while not switch.run(lambda: all(port.is_up for port in switch.ports.values())):
        assert time.monotonic() < deadline, "a worker's port is not up"
        time.sleep(0.001)


def exchange(one: Transport, other: Transport) -> None:
    """Frames through the switch, both ways."""
    buffer, rows = FrameBuffer(len(FRAMES)), np.arange(len(FRAMES))
    for row, frame in enumerate(FRAMES):
        buffer.put(row, frame)
    for here, there in ((one, other), (other, one)):
        sent = 0
        came: list[bytes] = []
        while len(came) < len(FRAMES):
            sent += here.send(buffer, rows[sent:])
            there.wait(DEADLINE_S)
            count = there.receive()
            came += [there.received.get(row) for row in range(count)]
        assert came == FRAMES


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [
        (LinkKind.SHARED, LinkKind.SHARED, LinkKind.SHARED),
        (LinkKind.SINGLE, LinkKind.SHARED, LinkKind.SINGLE),
        (LinkKind.SHARED, LinkKind.SINGLE, LinkKind.SINGLE),
        (LinkKind.SHARED, None, LinkKind.SINGLE),
    ],
)
def test_the_best_that_both_can(
    ours: LinkKind,
    theirs: LinkKind | None,
    agreed: LinkKind,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    switch: DataPlane | None = None
    older: OlderSwitch | None = None
    if theirs is LinkKind.SHARED:
        switch = request.getfixturevalue("switch")
    else:
        older = OlderSwitch(tmp_path, theirs)
        request.addfinalizer(older.close)
    workers = [LinkTransport(tmp_path / f"p{n}", ours, 0.3) for n in (1, 2)]
    if switch is not None:
        until_up(switch)
    if theirs is not LinkKind.SINGLE:
        assert [worker.kind for worker in workers] == [agreed, agreed]
    exchange(*workers)
    if older is not None:  # one that knows no links takes the hello for a frame too short
        asked = theirs in (None, LinkKind.SINGLE) and ours != LinkKind.SINGLE
        assert [count > 0 for count in older.too_short] == [asked, asked]
    for worker in workers:
        worker.close()


def test_old_and_new_workers_at_a_new_switch(switch: DataPlane, tmp_path: Path) -> None:
    old, new = LinkTransport(tmp_path / "p1", LinkKind.SINGLE), LinkTransport(tmp_path / "p2")
    assert new.kind == LinkKind.SHARED
    until_up(switch)
    exchange(old, new)
    old.close()
    new.close()


@pytest.mark.parametrize(
    ("hello", "answer"),
    [
        (HELLO, (1, 2, 8)),
        (b"P4RL\x01\x06\0\0", (1, 2, 8)),  # of a version that knew messages of many frames
        (b"P4RL\x01\x02\0\0", (1, 0, 8)),
        (b"P4RL\x01\x00\0\0", (1, 0, 8)),
        (b"P4RL\x01\xf8\0\0", (1, 0, 8)),  # wishes of a later version only
        (b"P4RL\x09\xff\1\2\3\4\5\6\7", (1, 2, 8)),  # a later version that says more
    ],
)
def test_answers(hello: bytes, answer: tuple[int, int, int]) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        switch = Link.accept(here, ALL)
        there.send(hello)
        assert switch.receive() == []
        message, files, _, _ = socket.recv_fds(there, 100, 4)
        assert message == b"P4RL" + bytes([*answer, 0, 0, 0, 0, 0])
        assert len(files) == (answer[1] == 2)
        assert switch.kind == answer[1]
        assert switch.counts.rx_too_short == 0
        for file in files:
            os.close(file)
        switch.close()


@pytest.mark.parametrize(
    "messages",
    [
        [b"P4RL\x00\x06\0\0"],  # no such version
        [b"P4RK\x01\x06\0\0"],
        [HELLO[:7]],
        [HELLO + bytes(6)],  # as long as a frame
        [bytes(14), HELLO],  # not the first message
        [b"", HELLO],
    ],
)
def test_what_is_no_hello(messages: list[bytes]) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        switch = Link.accept(here, ALL)
        for message in messages:
            there.send(message)
        frames = [message for message in messages if message]
        assert switch.receive() == frames
        assert switch.kind == LinkKind.SINGLE
        assert switch.counts.rx_too_short == len(messages) - len(frames)
        there.setblocking(False)
        with pytest.raises(BlockingIOError):
            there.recv(100)
        switch.close()


def test_what_follows_a_hello_at_once_is_taken_as_frames() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        switch = Link.accept(here, ALL)
        there.send(HELLO)
        there.send(FRAMES[3])
        assert switch.receive() == [FRAMES[3]]
        switch.close()


def test_frames_before_the_answer_are_dropped() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.send(FRAMES[5])
    switch = Link.accept(here, ALL)
    switch.send(FRAMES[:3])
    with answering(switch):
        worker = Link.connect(there, ALL, DEADLINE_S)
    switch.send(FRAMES[6:8])
    assert worker.receive() == FRAMES[6:8]
    worker.close()
    switch.close()


def test_an_answer_that_does_not_come() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.send(FRAMES[0])
    with here, there, pytest.raises(TimeoutError):
        Link.connect(there, ALL, 0.05)


@pytest.mark.parametrize(
    "answer",
    [
        (2, 2, 9),  # a version that was not asked for
        (1, 3, 9),
        (1, 1, 9),  # a kind that was not wished
        (1, 2, 13),  # more slots than there may be
        (1, 2, 0),  # no memory comes with it
    ],
)
def test_answers_that_cannot_be_used(answer: tuple[int, int, int]) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.send(b"P4RL" + bytes([*answer, 0, 0, 0, 0, 0]))
    with here, there, pytest.raises(OSError, match=os.strerror(errno.EPROTO)):
        Link.connect(there, 1 << LinkKind.SHARED, DEADLINE_S)


@pytest.mark.parametrize("seals", [0, 2, 4])  # none, F_SEAL_SHRINK, F_SEAL_GROW
def test_memory_that_could_be_cut_short_is_refused(seals: int) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(memory, 2 * 4096)
    fcntl.fcntl(memory, 1033, seals)  # F_ADD_SEALS
    answer = b"P4RL" + bytes([1, 2, 0, 0]) + (65536).to_bytes(4, "little")
    with here, there:
        here.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))])
        os.close(memory)
        if seals == 2:
            Link.connect(there, ALL, DEADLINE_S).close()
            return
        with pytest.raises(OSError, match=os.strerror(errno.EPROTO)):
            Link.connect(there, ALL, DEADLINE_S)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("files", [2, 3, 253])
@pytest.mark.parametrize("is_answer", [True, False])
def test_descriptors_that_nobody_asked_for_are_closed(files: int, is_answer: bool) -> None:
    """Of an answer with more than one, and of messages that are no answer."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there, Path(os.devnull).open() as unwanted:
        before = open_files()
        message = b"P4RL" + bytes([1, 2, 0, 0]) + (65536).to_bytes(4, "little")
        several = array.array("i", [unwanted.fileno()] * files)
        for _ in range(3):
            here.sendmsg(
                [message if is_answer else FRAMES[0]],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, several)],
            )
        with pytest.raises(
            OSError, match=os.strerror(errno.EPROTO if is_answer else errno.ETIMEDOUT)
        ):
            Link.connect(there, ALL, DEADLINE_S if is_answer else 0.05)
        assert open_files() == before, "the socket itself is still the caller's"


@pytest.mark.usefixtures("switch")
def test_where_memory_is_kept_back_frames_go_one_by_one(tmp_path: Path) -> None:
    """As by something that passes messages on, and knows nothing of file descriptors."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(tmp_path / "relay"))
    listener.listen()

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        while message := source.recv(70000):
            target.send(message)

    def relay() -> None:
        for _ in range(2):
            near = listener.accept()[0]
            far = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            far.connect(str(tmp_path / "p1"))
            back = threading.Thread(target=pass_on, args=(far, near), daemon=True)
            back.start()
            pass_on(near, far)
            far.shutdown(socket.SHUT_RDWR)
            back.join()
            near.close()
            far.close()

    threading.Thread(target=relay, daemon=True).start()
    worker, other = LinkTransport(tmp_path / "relay"), LinkTransport(tmp_path / "p2")
    assert (worker.kind, other.kind) == (LinkKind.SINGLE, LinkKind.SHARED)
    exchange(worker, other)
    worker.close()
    other.close()
    listener.close()


@pytest.mark.usefixtures("switch")
def test_the_switch_turns_a_second_worker_away(tmp_path: Path) -> None:
    first = LinkTransport(tmp_path / "p1")
    with pytest.raises(SwitchUnreachableError, match=f"hung up on unix:{tmp_path}/p1.*another"):
        LinkTransport(tmp_path / "p1")
    first.close()
    LinkTransport(tmp_path / "p1").close()


@pytest.mark.parametrize("kind", list(UNIX_KINDS))
def test_the_switch_stops(kind: LinkKind, tmp_path: Path, switch: DataPlane) -> None:
    worker = LinkTransport(tmp_path / "p1", kind)
    switch.stop()
    worker.wait(DEADLINE_S)
    with pytest.raises(SwitchUnreachableError, match=f"hung up on unix:{tmp_path}/p1"):
        worker.receive()
    worker.close()


@pytest.mark.usefixtures("switch")
def test_which_kind_the_environment_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"unix:{tmp_path}/p1"
    for asked, kind in ((None, 2), ("shared", 2), ("single", 0)):
        if asked is None:
            monkeypatch.delenv("P4REDUCE_LINK", raising=False)
        else:
            monkeypatch.setenv("P4REDUCE_LINK", asked)
        transport = open_port(name, 0)
        assert isinstance(transport, LinkTransport)
        assert transport.kind == kind
        transport.close()
    monkeypatch.setenv("P4REDUCE_LINK", "fast")
    with pytest.raises(ConfigurationError, match=r"P4REDUCE_LINK=fast: expected single or shared"):
        open_port(name, 0)


def test_wake_ends_a_wait() -> None:
    with both_ends(LinkKind.SHARED) as (_, worker):
        wake = os.eventfd(0, os.EFD_NONBLOCK)
        assert not worker.wait(wake, 0.0, writable=False)
        os.eventfd_write(wake, 1)
        assert worker.wait(wake, DEADLINE_S, writable=False)
        os.close(wake)


def test_a_number_of_slots_that_cannot_be() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        for slots in (-1, 3, 8192):
            with pytest.raises(ValueError, match=f"{slots} slots"):
                Link.accept(here, offers(LinkKind.SHARED), slots)
