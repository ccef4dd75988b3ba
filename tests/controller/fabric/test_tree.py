# SPDX-License-Identifier: Apache-2.0
"""Real switches, linked to a tree: two leaves below a root; and one that nothing joins to them.

Everything goes through ports, and one controller owns all of them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from controller_harness import (
    Rank,
    RunningController,
    SwitchProcess,
    contribute,
    eventually,
    failed,
    reform,
    refused,
    result,
)
from p4reduce.control import control_pb2 as pb
from p4reduce_controller.settings import SwitchServer
from p4reduce_controller.topology.switches import Switch, Topology, Uplink
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac

UPLINK = 9  # the leaves' port to the root
MEETING = (parse_ip("10.77.255.254"), parse_mac("02:70:34:72:65:64"))


class Cable:
    """Joins whoever calls at `path` to a port, until it is cut."""

    def __init__(self, path: Path, port: Path) -> None:
        self.path, self._port = path, port
        self._ends: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self.mend()

    def mend(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.path))
        self._listener.listen(1)
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        self.path.unlink()
        for end in (self._listener, *self._ends):
            if end is not None:
                # A thread that waits for it wakes up.
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        self._ends = []

    def _serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                below, _ = listener.accept()
                above = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                try:
                    above.connect(str(self._port))
                except OSError:
                    below.close()
                    continue
                self._ends = [below, above]
                for here, there in ((below, above), (above, below)):
                    threading.Thread(target=_pump, args=(here, there), daemon=True).start()


def _pump(here: socket.socket, there: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while frame := here.recv(4096):
            there.send(frame)
    with contextlib.suppress(OSError):
        there.shutdown(socket.SHUT_RDWR)


@dataclass
class Net:
    """The switches by name; b's link to the root goes by a cable that can be cut."""

    switches: dict[str, SwitchProcess]
    topology: Topology
    cable: Cable

    def settings(self) -> dict[str, object]:
        servers = {name: SwitchServer(switch.address, 1) for name, switch in self.switches.items()}
        return {"topology": self.topology, "servers": servers}


def topology(**uplinks: Uplink) -> Topology:
    ports = {"root": (3, 4), "a": (1, 2, 3, 4), "b": (1, 2, 3, 4), "alone": (1, 2, 3, 4)}
    switches = {
        name: Switch(
            name, MEETING[0] - place, MEETING[1] + place, ports[name], uplink=uplinks.get(name)
        )
        for place, name in enumerate(ports, start=1)
    }
    return Topology(switches, MEETING)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    with contextlib.ExitStack() as undo:

        def start(name: str, calls: dict[int, Path]) -> SwitchProcess:
            switch = SwitchProcess(tmp_path_factory.mktemp(name), calls)
            undo.callback(switch.close)
            return switch

        root = start("root", {})
        cable = Cable(tmp_path_factory.mktemp("cable") / "b", root.port_path(2))
        undo.callback(cable.cut)
        yield Net(
            {
                "root": root,
                "a": start("a", {UPLINK: root.port_path(1)}),
                "b": start("b", {UPLINK: cable.path}),
                "alone": start("alone", {}),
            },
            topology(a=Uplink(UPLINK, "root", 1), b=Uplink(UPLINK, "root", 2)),
            cable,
        )


@pytest.fixture
def controller(net: Net, tmp_path: Path) -> Iterator[RunningController]:
    for switch in net.switches.values():
        switch.drain()
    with running_controller(net, tmp_path) as controller:
        yield controller


@contextlib.contextmanager
def running_controller(net: Net, directory: Path, **changes: object) -> Iterator[RunningController]:
    controller = RunningController("", directory, **(net.settings() | changes))
    try:
        yield controller
    finally:
        controller.stop()


def join(
    controller: RunningController, net: Net, places: list[tuple[str, int]], job: str = "train"
) -> list[Rank]:
    """Let a rank join by each of those ports, of which it says no more than which tree it is at."""
    ranks = [
        Rank(controller, net.switches[name], rank, len(places), job, port=port, at="root")
        for rank, (name, port) in enumerate(places)
    ]
    for rank in ranks:
        rank.hello()
    for rank in ranks:
        rank.await_ready()
    return ranks


def check_sum(ranks: list[Rank], round_: int = 1) -> None:
    for number, rank in enumerate(ranks, start=1):
        contribute(rank, number, round_)
    total = len(ranks) * (len(ranks) + 1) // 2
    for rank in ranks:
        answer = result(rank)
        assert bytes(answer.payload)[:1024] == total.to_bytes(4, "big") * 256
        assert (answer.rank, answer.round) == (rank.rank, round_)


ACROSS = [("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def test_the_sum_goes_over_both_leaves(controller: RunningController, net: Net) -> None:
    ranks = join(controller, net, ACROSS)
    check_sum(ranks)
    assert controller.count("round-completed", "root") == 1
    assert controller.count("sums-sent-up", "a") == controller.count("sums-sent-up", "b") == 1
    assert controller.count("result-passed-down", "a") == 1
    job = controller.job("train")
    assert list(job.switches) == ["root", "a", "b"]
    assert [(each.switch, each.port) for each in job.members] == ACROSS
    statistics = controller.call("GetStatistics", job="train").ranks
    assert [(each.frames_up, each.frames_down) for each in statistics] == [(1, 1)] * 4


def test_each_rank_is_told_who_is_behind_which_bit(controller: RunningController, net: Net) -> None:
    ranks = join(controller, net, [("a", 1), ("b", 1), ("root", 3), ("b", 2)])
    top = pb.Level(
        switch="root",
        children=[
            pb.Child(ranks=[2]),
            pb.Child(switch="a", ranks=[0]),
            pb.Child(switch="b", ranks=[1, 3]),
        ],
    )
    below = pb.Level(switch="b", children=[pb.Child(ranks=[1]), pb.Child(ranks=[3])])
    assert list(ranks[3].ready.levels) == [below, top]
    assert list(ranks[2].ready.levels) == [top]
    assert (ranks[1].ready.switch, ranks[1].ready.switch_ip) == ("b", "10.77.255.251")
    check_sum(ranks)


def test_ranks_on_one_leaf_need_no_other_switch(controller: RunningController, net: Net) -> None:
    ranks = join(controller, net, [("a", 1), ("a", 2)], job="leaf")
    others = join(controller, net, [("a", 3), ("b", 3), ("a", 4)], job="across")
    alone = [
        Rank(controller, net.switches["alone"], rank, 2, "alone", port=rank + 1, at="alone")
        for rank in (0, 1)
    ]
    for rank in alone:
        rank.hello()
    for rank in alone:
        rank.await_ready()
    for job in (ranks, others, alone):
        check_sum(job)
    assert list(controller.job("leaf").switches) == ["a"]
    assert list(controller.job("across").switches) == ["root", "a", "b"]
    assert list(controller.job("alone").switches) == ["alone"]
    for rank in (*ranks, *others):
        rank.leave()
    free = {each.name: each.slots_free for each in controller.call("ListSwitches").switches}
    eventually(
        lambda: all(
            each.slots_free == (992 if each.name == "alone" else 1024)
            for each in controller.call("ListSwitches").switches
        ),
        f"their slots are free, of which there were {free}",
    )


def test_a_job_says_which_tree_it_is_for(controller: RunningController, net: Net) -> None:
    anywhere = refused(
        grpc.StatusCode.INVALID_ARGUMENT, lambda: Rank(controller, net.switches["a"], 0, 2, "x")
    )
    assert "must name its switch" in anywhere
    assert "root, a, b, alone" in anywhere


def test_a_leaf_that_is_restarted(controller: RunningController, net: Net) -> None:
    ranks = join(controller, net, ACROSS)
    other = join(controller, net, [("b", 3), ("b", 4)], job="other")
    check_sum(ranks)
    net.switches["a"].kill()
    told = failed(ranks)
    assert told.cause == pb.CAUSE_SWITCH_LOST
    assert told.reason.startswith("switch a was lost")
    impatient, *others = [rank.begin_reform(timeout=0.5) for rank in ranks[:1]] + [
        rank.begin_reform() for rank in ranks[1:]
    ]
    assert impatient.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "switch a was lost" in impatient.details()
    check_sum(other)  # nothing happened to it
    net.switches["a"].revive()
    asked = [ranks[0].begin_reform(), *others]
    again = [rank.reformed(each.result()) for rank, each in zip(ranks, asked, strict=True)]
    for rank in again:
        rank.hello()
    for rank in again:
        rank.await_ready()
    check_sum(again)


def test_a_root_that_is_restarted(controller: RunningController, net: Net) -> None:
    ranks = join(controller, net, ACROSS)
    leaf = join(controller, net, [("b", 3), ("b", 4)], job="leaf")
    net.switches["root"].kill()
    assert failed(ranks).reason.startswith("switch root was lost")
    check_sum(leaf)
    net.switches["root"].revive()
    again = reform(ranks)
    for rank in again:
        rank.await_ready()
    check_sum(again)


def test_a_link_that_is_cut(controller: RunningController, net: Net) -> None:
    ranks = join(controller, net, ACROSS)
    below = join(controller, net, [("b", 3), ("b", 4)], job="below")
    net.cable.cut()
    told = failed(ranks)
    link = "the link from b port 9 to root port 2"
    assert told.cause == pb.CAUSE_SWITCH_LOST
    assert told.reason == f"{link} was lost: no probe comes through it"
    asked = [rank.begin_reform() for rank in ranks[1:]]
    impatient = ranks[0].begin_reform(timeout=0.5)
    assert impatient.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert link in impatient.details()
    check_sum(below)
    assert not controller.call("GetSwitch", switch="b").uplink.works
    net.cable.mend()
    asked = [ranks[0].begin_reform(), *asked]
    again = [rank.reformed(each.result()) for rank, each in zip(ranks, asked, strict=True)]
    for rank in again:
        rank.hello()
    for rank in again:
        rank.await_ready()
    check_sum(again)


def test_a_controller_that_is_restarted(net: Net, tmp_path: Path) -> None:
    first = RunningController("", tmp_path, **net.settings())
    ranks = join(first, net, ACROSS)
    check_sum(ranks)
    first.crash()
    check_sum(ranks, round_=2)  # the switches continue
    with running_controller(net, tmp_path) as second:
        for rank in ranks:
            rank.controller = second
            assert rank.heartbeat().state == pb.RUNNING
        check_sum(ranks, round_=3)


def test_links_that_are_wired_otherwise(net: Net, tmp_path: Path) -> None:
    crossed = topology(a=Uplink(UPLINK, "root", 2), b=Uplink(UPLINK, "root", 1))
    for switch in net.switches.values():
        switch.drain()
    with running_controller(net, tmp_path, topology=crossed) as controller:

        def uplink(name: str) -> pb.Uplink:
            return controller.call("GetSwitch", switch=name).uplink  # type: ignore[no-any-return]

        eventually(lambda: "leads" in uplink("a").reason, "the wrong link is found")
        assert uplink("a").reason == "it leads to port 1 of root"
        rank = Rank(controller, net.switches["a"], 0, 2, "train", port=1, at="a")
        other = Rank(controller, net.switches["b"], 1, 2, "train", port=1, at="b")
        rank.hello()
        other.hello()
        message = refused(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: rank.await_ready(timeout=1.0))
        assert (
            "the link from a port 9 to root port 2 was lost: it leads to port 1 of root" in message
        )


@pytest.mark.long
def test_a_rank_at_another_switch_than_it_says(controller: RunningController, net: Net) -> None:
    rank = Rank(controller, net.switches["b"], 0, 1, "train", port=1, at="a")
    rank.hello()
    eventually(
        lambda: controller.call("GetSwitch", switch="b").hellos_refused == 1, "it is refused"
    )
    message = refused(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: rank.await_ready(timeout=0.1))
    assert "it joined for switch a, but its HELLO came in by port 1 of b" in message
