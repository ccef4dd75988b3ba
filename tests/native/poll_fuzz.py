# SPDX-License-Identifier: Apache-2.0
"""Events in any order within one poll of the loop, at real ports: poll_fuzz SEED ROUNDS FAULTS.

FAULTS is the library of syscall_faults.c, which is preloaded. "compile" in place of all three only
compiles what is missing. In each round the data plane is held
while peers leave, others knock, hosts refuse, sends fail, handlers raise and requests wait; then
all of it comes in one poll. Afterwards every port takes a peer, every frame that was sent at a Unix
port has come, every request has its answer, and no socket is tried or waited for without pause.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import hmac
import logging
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loop_program import NativeProgram, compile_program
from p4reduce.transport import LinkTransport
from p4reduce_native.compile import compile_shared
from p4reduce_native.datagrams import DatagramLink
from p4reduce_native.library import CSRC, runtime_sources
from p4reduce_native.link import LinkKind
from p4reduce_native.udp_handshake import (
    HandshakeRefusedError,
    HandshakeResult,
    enter,
    never_cut_up,
)
from p4reduce_switch.dataplane import DataPlane, open_data_plane
from p4reduce_switch.ports.capture import Captures
from p4reduce_switch.ports.place import PortOptions
from p4reduce_switch.ports.registry import parse_ports
from stand_ins import Program
from switch_peer import Peer, ethernet, eventually

SECONDS = 120.0
UDP, UNIX = (1, 2), (3, 4)
ALL = (*UDP, *UNIX)
COOKIE, ACCEPT = 2, 4
PASSING = (errno.EAGAIN, errno.EINTR, errno.ECONNREFUSED)
FAILURES = {
    socket.AF_INET: (
        errno.ENOBUFS,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ENETDOWN,
        errno.EPERM,
        *PASSING,
    ),
    socket.AF_UNIX: (errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN, errno.EINTR),
}
"""Of sends, by the domain. Those of `PASSING` come a few times, the others all the time."""


class PlantedError(Exception):
    """Raised by a handler, as it was asked to."""


def datagram_socket(where: tuple[str, int], own: tuple[str, int] = ("127.0.0.1", 0)) -> Any:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setblocking(False)
    never_cut_up(sock)
    sock.bind(own)
    sock.connect(where)
    return sock


class Knocker:
    """Somebody who wants a UDP port, one datagram at a time."""

    def __init__(self, where: tuple[str, int], generator: random.Random) -> None:
        self.socket = datagram_socket(where)
        self._nonce = generator.randbytes(16)
        self._cookie = b""

    def knock(self) -> None:
        """Send what is next: HELLO, or CONNECT behind its cookie."""
        for message in iter(self._take, b""):
            if message[5] == COOKIE:
                self._cookie = message[24:40]
        if not self._cookie:
            self._send(b"P4RU\x01\x01\0\0" + self._nonce, 1200)
            return
        size = (1200).to_bytes(4, "big")
        parts = b"|".join((b"connect", self._nonce, self._cookie, size))
        proof = hmac.digest(hashlib.sha256(b"").digest(), parts, "sha256")[:16]
        self._send(b"P4RU\x01\x03\0\0" + self._nonce + self._cookie + size + proof, 0)

    def _take(self) -> bytes:
        with contextlib.suppress(OSError):
            return bytes(self.socket.recv(2048))
        return b""

    def _send(self, message: bytes, length: int) -> None:
        with contextlib.suppress(OSError):
            self.socket.send(message.ljust(length, b"\0"))


class Worker(DatagramLink):
    """One that can be killed, and robbed."""

    def __init__(self, sock: socket.socket, entered: HandshakeResult) -> None:
        super().__init__(sock, entered)
        self.socket, self.token = sock, entered.token


class Raising(NativeProgram):
    """Its events, and those of packet-ins, sometimes end by an exception."""

    def __init__(self, generator: random.Random) -> None:
        super().__init__()
        self._generator = generator
        self.raises = 0

    def maybe_raise(self) -> None:
        if self._generator.random() < 0.3:
            self.raises += 1
            raise PlantedError

    def serve_events(self) -> None:
        super().serve_events()
        self.maybe_raise()

    def take_packet_in(self, _frame: bytes) -> bool:
        self.maybe_raise()
        return True


def copies(port: int, frame: bytes) -> list[tuple[int, bytes]]:
    """As the program in C does with 'm', in Python."""
    return [(other, frame) for other in (*ALL, port)]


class Errors(logging.Handler):
    """Keeps the exceptions that the data plane has logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None and record.exc_info[1] is not None:
            self.found.append(record.exc_info[1])


class Fuzzer:
    def __init__(self, directory: Path, generator: random.Random, faults: Any) -> None:
        self.random = generator
        self.faults = faults
        self.captures = directory / "captures"
        where = f"1-2=udp:127.0.0.1:0 3=unix:{directory}/p3 4=unix:{directory}/p4"
        specs = [spec for text in where.split() for spec in parse_ports(text)]
        self.dataplane: DataPlane = open_data_plane(
            specs, PortOptions(Captures(self.captures)), cpu_port=255
        )
        self.directory = directory
        self.program = Raising(generator)
        self.dataplane.on_packet_in(self.program.take_packet_in)
        self.dataplane.start()
        self.workers: dict[int, Worker] = {}
        self.peers: dict[int, LinkTransport] = {}
        self.knockers: dict[int, list[Knocker]] = {port: [] for port in UDP}
        self.callers: list[Peer] = []
        self.sent = dict.fromkeys(UNIX, 0)  # frames of peers that the port has taken
        self.planted: set[int] = set()  # errors of looks
        self.answers: list[BaseException | None] = []

    def address(self, port: int) -> tuple[str, int]:
        return "127.0.0.1", int(self.dataplane.ports[port].description.rpartition(":")[2])

    # -- Peers, outside a poll -------------------------------------------------------------------

    def plug_in(self, port: int) -> None:
        """Take a port, however often its former peer has to be refused for it."""
        if port in UNIX:
            eventually(lambda: not self.dataplane.ports[port].is_up, f"port {port} free", SECONDS)
            kind = self.random.choice((LinkKind.SINGLE, LinkKind.SHARED))
            self.peers[port] = LinkTransport(self.directory / f"p{port}", kind, SECONDS)
            eventually(lambda: self.dataplane.ports[port].is_up, f"port {port} up", SECONDS)
            return

        def got_in() -> bool:
            sock = datagram_socket(self.address(port))
            try:
                self.workers[port] = Worker(sock, enter(sock, b"", time.monotonic() + 1.0))
            except (HandshakeRefusedError, OSError):
                sock.close()
                return False
            return True

        eventually(got_in, f"a worker has port {port}", SECONDS)

    # -- Events, all of one poll -----------------------------------------------------------------

    def events(self) -> Iterator[Callable[[], None]]:
        for port in UDP:
            for _ in range(self.random.randrange(3)):
                self.knockers[port].append(Knocker(self.address(port), self.random))
            for knocker in self.knockers[port]:
                yield knocker.knock
                yield knocker.knock
            if worker := self.workers.get(port):
                yield functools.partial(self.say, worker)
                yield functools.partial(self.roam, port, worker)
                if self.random.random() < 0.6:
                    yield functools.partial(self.leave, port)
        for port in UNIX:
            yield functools.partial(self.call, port)
            if port in self.peers:
                yield functools.partial(self.send, port)
                yield functools.partial(self.send, port)
                if self.random.random() < 0.6:
                    yield functools.partial(self.leave, port)
        yield lambda: self.dataplane.inject(self.frame(b"m"))
        domain = self.random.choice((socket.AF_INET, socket.AF_INET, socket.AF_UNIX))
        code = self.random.choice(FAILURES[domain])
        calls = self.random.randrange(1, 5) if code in PASSING else -1
        yield lambda: self.faults.faults_send(domain, code, calls)
        if self.random.random() < 0.5:
            yield functools.partial(
                self.fail_to_look, self.random.choice((errno.EINTR, errno.EBADF))
            )
        if self.random.random() < 0.2:
            yield lambda: self.faults.faults_add(errno.ENOSPC)

    def frame(self, what: bytes) -> bytes:
        return ethernet(what + bytes(self.random.randrange(1000)))

    def say(self, worker: Worker) -> None:
        frames = [self.frame(self.random.choice((b"m", b"e", b"c"))) for _ in range(3)]
        with contextlib.suppress(OSError):
            worker.send(frames)

    def roam(self, port: int, worker: Worker) -> None:
        """The worker's token from elsewhere, as of a moved peer or a thief."""
        with datagram_socket(self.address(port)) as elsewhere, contextlib.suppress(OSError):
            elsewhere.send(worker.token + bytes(4 + self.random.randrange(100)))

    def send(self, port: int) -> None:
        if port not in self.peers:
            return
        frames = [self.frame(self.random.choice((b"m", b"m", b"e", b"c"))) for _ in range(20)]
        with contextlib.suppress(OSError):
            self.sent[port] += self.peers[port].link.send(frames)

    def call(self, port: int) -> None:
        with contextlib.suppress(OSError):
            self.callers.append(Peer(self.directory / f"p{port}"))

    def leave(self, port: int) -> None:
        if port in UNIX:
            if peer := self.peers.pop(port, None):
                peer.close()
        elif worker := self.workers.pop(port, None):
            if self.random.random() < 0.3:  # without goodbye: its host refuses what comes
                worker.socket.close()
            worker.close()

    def fail_to_look(self, code: int) -> None:
        self.planted.add(code)
        self.faults.faults_wait(code, self.random.randrange(4))

    # -- A round ---------------------------------------------------------------------------------

    def round(self) -> None:
        for port in ALL:
            if (port in UDP and port not in self.workers) or (
                port in UNIX and port not in self.peers
            ):
                self.plug_in(port)
        program = self.random.choice((self.program, self.program, Program(copies)))
        self.dataplane.run(lambda: self.dataplane.install(program))  # type: ignore[arg-type]
        events = list(self.events())
        self.random.shuffle(events)
        asked = threading.Thread(target=self.ask)

        def at_once() -> None:
            asked.start()
            time.sleep(0.002 * self.random.random())  # the request waits already, or not yet
            for event in events:
                event()

        self.dataplane.run(at_once)
        asked.join(SECONDS)
        assert not asked.is_alive(), "a request has no answer"
        time.sleep(0.02)  # in which what fails is tried again, and again
        self.faults.faults_send(0, 0, 0)
        self.settle()

    def ask(self) -> None:
        try:
            assert self.dataplane.run(lambda: 42) == 42
            self.answers.append(None)
        except BaseException as error:
            self.answers.append(error)

    def settle(self) -> None:
        """Callers are refused or let in; those that were let in leave again, as do knockers."""
        for knockers in self.knockers.values():
            for knocker in knockers:
                knocker.socket.close()
            knockers.clear()
        for caller in self.callers:
            caller.close()
        self.callers.clear()
        assert not any(self.answers), self.answers
        assert not self.faults.faults_spins(), "it waits for room that is there"
        assert not self.faults.faults_hurries(), "it tries again too soon"

    def finish(self, errors: Errors) -> None:
        for port in list(self.workers) + list(self.peers):
            self.leave(port)
        ports = [self.dataplane.ports[port] for port in UNIX]
        eventually(lambda: not any(port.is_up for port in ports), "all have left", SECONDS)
        counts = self.dataplane.counts()
        self.dataplane.stop()
        for port in UNIX:
            assert counts[f"port {port}"]["rx_frames"] == self.sent[port], (port, self.sent, counts)
        for port in ALL:
            its = self.dataplane.ports[port].stats
            shown = frames_in(self.captures / f"port{port}.pcap")
            assert shown == its.rx_frames + its.tx_frames, (port, shown, its)
        for error in errors.found:
            assert isinstance(error, PlantedError) or (
                isinstance(error, OSError) and error.errno in self.planted
            ), repr(error)


def frames_in(path: Path) -> int:
    """How many frames a capture has."""
    data, at, count = path.read_bytes(), 24, 0
    while at < len(data):
        at += 16 + struct.unpack_from("=8xI", data, at)[0]
        count += 1
    return count


def main() -> None:
    if sys.argv[1] == "compile":
        compile_shared("runtime", runtime_sources(), include=[CSRC])
        compile_program()
        return
    seed, rounds = int(sys.argv[1]), int(sys.argv[2])
    faults = ctypes.CDLL(sys.argv[3])
    faults.faults_begin(ctypes.c_uint64(seed))
    errors = Errors()
    logging.getLogger("p4reduce_switch").addHandler(errors)
    with tempfile.TemporaryDirectory() as directory:
        fuzzer = Fuzzer(Path(directory), random.Random(seed), faults)
        for _ in range(rounds):
            fuzzer.round()
        fuzzer.finish(errors)
    print(
        f"seed {seed}: {rounds} rounds, {faults.faults_failures()} sends failed, "
        f"{faults.faults_shuffles()} events changed places, {fuzzer.program.raises} handlers raised"
    )


if __name__ == "__main__":
    main()
