# SPDX-License-Identifier: Apache-2.0
"""Where a worker wakes up: as the switch wants it, until it leaves the loop (link/placement.h)."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from link_ends import DEADLINE_S, NO_LINKS, link, receive_all
from loop_program import NativeProgram
from p4reduce_native.c_header import CHeader
from p4reduce_native.library import runtime
from p4reduce_native.link import Link, LinkKind, offers
from p4reduce_switch.dataplane import open_data_plane
from p4reduce_switch.ports.place import PortSpec
from p4reduce_switch.ports.unix import UnixPlace
from switch_peer import ethernet, eventually

CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pytestmark = [
    pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS)),
    pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs"),
]

LINK = CHeader("link/link.h")
PLACED = LINK.constants["P4R_LINK_PLACED"]
PLACEMENTS = LINK.enumerations["p4r_placement"]
SLEEPS, SLEEPS_ELSEWHERE = (LINK.constants[f"P4R_SLEEPS{end}"] for end in ("", "_ELSEWHERE"))
ANYWHERE, ELSEWHERE, TOGETHER = (
    PLACEMENTS[f"P4R_{name}"] for name in ("ANYWHERE", "ELSEWHERE", "TOGETHER")
)
BOTH = set(CPUS[:2])


@contextmanager
def bound_to(cpus: set[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def send_wish(switch: Link, placement: int) -> None:
    """Send a frame, and with it where the peer is to wake up, from the present CPU's side."""
    library = LINK.functions(runtime())
    frame = ctypes.create_string_buffer(ethernet(b"w"))
    library.p4r_link_place(switch.pointer, placement)
    assert library.p4r_link_put(switch.pointer, frame, len(frame))
    assert library.p4r_link_tell(switch.pointer) == 0


@contextmanager
def wished(placement: int) -> Iterator[tuple[Link, Link]]:
    """Switch and worker, which has heard of a wish; the switch's CPU is the first one."""
    with link(LinkKind.SHARED) as (switch, worker), bound_to({CPUS[0]}):
        send_wish(switch, placement)
        assert len(receive_all(worker, 1)) == 1
        yield switch, worker


def placement_in_memory() -> ctypes.c_uint32:
    """The word in the ring down, of the only link that there is."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = next(line for line in maps if "memfd:p4reduce-link" in line)
    start, end = (int(address, 16) for address in found.split()[0].split("-"))
    return ctypes.c_uint32.from_address((start + end) // 2 + 4)


def how_it_sleeps(switch: Link) -> int:
    sleeps: int = LINK.functions(runtime()).p4r_link_peer_sleeps(switch.pointer)
    return sleeps


class Sleeper:
    """A worker's thread that may run on these CPUs, and waits for a frame."""

    def __init__(self, worker: Link, cpus: set[int], how: int = PLACED) -> None:
        self._worker, self._cpus, self._how = worker, cpus, how
        self.woken_on: set[int] = set()
        self.left_on: set[int] = set()
        self._thread = threading.Thread(target=self._sleep)
        self._thread.start()

    def _sleep(self) -> None:
        with bound_to(self._cpus):
            library = LINK.functions(runtime())
            pointer = self._worker.pointer
            while not self._worker.receive():  # which arms the doorbell
                assert library.p4r_link_wait(pointer, -1, int(DEADLINE_S * 1000), self._how) >= 0
            self.woken_on = os.sched_getaffinity(0)
            library.p4r_link_unbind(pointer)
            self.left_on = os.sched_getaffinity(0)

    @property
    def tid(self) -> int:
        assert self._thread.native_id is not None
        return self._thread.native_id

    def falls_asleep_on(self, cpus: set[int]) -> None:
        def sleeps() -> bool:
            stat = Path(f"/proc/self/task/{self.tid}/stat").read_text()
            return stat.rpartition(") ")[2][0] == "S" and os.sched_getaffinity(self.tid) == cpus

        eventually(sleeps, f"it sleeps on {cpus}, not {os.sched_getaffinity(self.tid)}")

    def wakes_on(self, cpus: set[int], then: set[int]) -> None:
        self._thread.join(DEADLINE_S)
        assert (self.woken_on, self.left_on) == (cpus, then)


@pytest.mark.parametrize(
    ("wish", "cpus", "asleep"),
    [
        (ANYWHERE, BOTH, BOTH),
        (ELSEWHERE, BOTH, {CPUS[1]}),
        (TOGETHER, BOTH, {CPUS[0]}),
        (ELSEWHERE, {CPUS[0]}, {CPUS[0]}),  # there is no other
        (ELSEWHERE, {CPUS[1]}, {CPUS[1]}),  # the switch's is not among them
        (TOGETHER, {CPUS[1]}, {CPUS[1]}),
    ],
)
def test_bound_until_it_is_unbound(wish: int, cpus: set[int], asleep: set[int]) -> None:
    with wished(wish) as (switch, worker):
        sleeper = Sleeper(worker, cpus)
        sleeper.falls_asleep_on(asleep)
        elsewhere = wish == ELSEWHERE and cpus == BOTH
        assert how_it_sleeps(switch) == (SLEEPS_ELSEWHERE if elsewhere else SLEEPS)
        send_wish(switch, wish)
        sleeper.wakes_on(asleep, then=cpus)


def test_not_bound_for_a_short_collective() -> None:
    with wished(ELSEWHERE) as (switch, worker):
        sleeper = Sleeper(worker, BOTH, how=0)
        sleeper.falls_asleep_on(BOTH)
        send_wish(switch, ELSEWHERE)
        sleeper.wakes_on(BOTH, then=BOTH)


def test_a_short_collective_is_not_bound_by_one_before() -> None:
    with wished(ELSEWHERE) as (_, worker):
        library = LINK.functions(runtime())
        with bound_to(BOTH):
            for how, cpus in ((PLACED, {CPUS[1]}), (0, BOTH)):
                assert library.p4r_link_wait(worker.pointer, -1, 0, how) >= 0
                assert os.sched_getaffinity(0) == cpus


def test_a_wish_that_changes_is_followed() -> None:
    with wished(ELSEWHERE) as (_, worker), bound_to(BOTH):
        library = LINK.functions(runtime())
        for word, cpus in (
            (3 * CPUS[0] + ELSEWHERE, {CPUS[1]}),
            (3 * CPUS[1] + ELSEWHERE, {CPUS[0]}),
            (3 * CPUS[1] + TOGETHER, {CPUS[1]}),
            (ANYWHERE, BOTH),
        ):
            placement_in_memory().value = word
            assert library.p4r_link_wait(worker.pointer, -1, 0, PLACED) >= 0
            assert os.sched_getaffinity(0) == cpus


def test_what_the_user_sets_meanwhile_stays() -> None:
    with wished(ELSEWHERE) as (switch, worker):
        sleeper = Sleeper(worker, BOTH)
        sleeper.falls_asleep_on({CPUS[1]})
        os.sched_setaffinity(sleeper.tid, {CPUS[0]})
        send_wish(switch, ELSEWHERE)
        sleeper.wakes_on({CPUS[0]}, then={CPUS[0]})


@pytest.mark.parametrize("word", [3 * 1023 + 1, 3 * 1024 + 2, 2**32 - 1])
def test_a_word_without_sense_binds_nothing(word: int) -> None:
    with wished(ELSEWHERE) as (switch, worker):
        placement_in_memory().value = word
        sleeper = Sleeper(worker, BOTH)
        sleeper.falls_asleep_on(BOTH)
        assert how_it_sleeps(switch) == SLEEPS
        send_wish(switch, ANYWHERE)
        sleeper.wakes_on(BOTH, then=BOTH)


@pytest.mark.parametrize(
    ("ranks", "wishes"),
    [
        (3, "AAA"),  # the kernel places so few well
        (4, "TEEE"),
        (5, "TEEEE"),
        (6, "TTEEEE"),
        (7, "AAAAAAA"),
    ],
)
def test_wishes_of_a_switch_on_two_cpus(
    ranks: int, wishes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p4reduce_native.loop.usable_cpus", lambda: 2)
    expected = {"A": BOTH, "T": {CPUS[0]}, "E": {CPUS[1]}}
    paths = [tmp_path / f"p{number}" for number in range(1, 9)]
    dataplane = open_data_plane(
        [PortSpec(number, UnixPlace(path)) for number, path in enumerate(paths, 1)], cpu_port=255
    )
    with ExitStack() as stack:
        dataplane.start()
        stack.callback(dataplane.stop)
        dataplane.run(lambda: os.sched_setaffinity(0, {CPUS[0]}))
        dataplane.run(lambda: dataplane.install(NativeProgram()))  # type: ignore[arg-type]
        links = []
        for path in paths[:ranks]:
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            client.connect(str(path))
            links.append(Link.connect(client, offers(LinkKind.SHARED), DEADLINE_S))
            stack.callback(links[-1].close)
        links[0].send([ethernet(b"m")])
        for number, one in enumerate(links, 1):
            expected_frames = 2 if number == 2 else 1  # the wire's
            assert len(receive_all(one, expected_frames)) == expected_frames
        sleepers = [Sleeper(one, BOTH) for one in links]
        for sleeper, wish in zip(sleepers, wishes, strict=True):
            sleeper.falls_asleep_on(expected[wish])
        links[0].send([ethernet(b"m")])
        for sleeper, wish in zip(sleepers, wishes, strict=True):
            sleeper.wakes_on(expected[wish], then=BOTH)
