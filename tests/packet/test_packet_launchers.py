# SPDX-License-Identifier: Apache-2.0
"""The launchers: what they start runs, says why when it does not, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from p4reduce_controller.fabric.compiled_program import load_program
from p4reduce_controller.fabric.p4client import SwitchClient, wait_for_server
from p4reduce_lab.errors import LabError
from p4reduce_lab.processes.children import ChildFailedError, Processes
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.switches import bmv2, launch
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_lab.switches.launch import SwitchLauncher
from packet_testbed import link

DEADLINE = 120.0  # seconds; a test fails by it, and passes long before
CLASSES: dict[str, type[EmbeddedSwitch] | type[bmv2.Bmv2Switch]] = {
    "embedded": EmbeddedSwitch,
    "bmv2": bmv2.Bmv2Switch,
}
KINDS = [
    pytest.param("embedded"),
    pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.root]),
]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "bmv2" and (reason := bmv2.unavailable()):
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture
def directory() -> Iterator[Path]:
    with run_directory() as path:
        yield path


def running(pid: int) -> bool:
    """Whether there is such a process, zombies not counted."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def interfaces(prefix: str) -> list[str]:
    return [name for _, name in socket.if_nameindex() if name.startswith(prefix)]


def wait_until_gone(pid: int, prefix: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while running(pid) or interfaces(prefix):
        assert time.monotonic() < deadline, (
            f"process {pid} {'runs' if running(pid) else 'is gone'}; left: {interfaces(prefix)}"
        )
        time.sleep(0.02)


def prefix_of(switch: SwitchLauncher) -> str:
    """What the names of its interfaces begin with; no interface's, where it has none."""
    if switch.interface.startswith("unix:"):
        return "no interface"
    return switch.interface.removesuffix("{port}")


def test_serves_and_stops(kind: str, directory: Path) -> None:
    with CLASSES[kind](directory, 2) as switch:
        assert switch.name == kind
        assert list(switch.ports) == [1, 2]
        assert switch.alive()
        wait_for_server(switch.grpc_address, 5.0)
        pid, prefix = switch.pid, prefix_of(switch)
        assert pid is not None
        link(switch.interface.format(port=1)).close()
    assert not switch.alive()
    wait_until_gone(pid, prefix)
    assert not (directory / "switch.sock").exists()


def test_stops_on_an_exception(kind: str, directory: Path) -> None:
    pid, prefix = None, ""
    with pytest.raises(KeyError), CLASSES[kind](directory, 1) as switch:  # noqa: PT012
        pid, prefix = switch.pid, prefix_of(switch)
        raise KeyError
    assert pid is not None
    wait_until_gone(pid, prefix)


def test_two_at_a_time(kind: str, directory: Path) -> None:
    """They share no port, socket or interface."""
    for name in ("a", "b"):
        (directory / name).mkdir()
    with CLASSES[kind](directory / "a", 2) as one, CLASSES[kind](directory / "b", 2) as other:
        assert one.grpc_address != other.grpc_address
        assert not set(one.ports.values()) & set(other.ports.values())
        for switch in (one, other):
            client = SwitchClient.connect(switch.grpc_address, launch.DEVICE_ID, 1)
            client.set_pipeline(load_program())
            client.close()


def test_says_why_it_does_not_start(kind: str, directory: Path) -> None:
    """A port that is not there; the end of the log has the switch's own words."""
    with (
        pytest.raises(LabError, match="port") as failure,
        CLASSES[kind](directory, {1: "p4r-nosuch"}),
    ):
        pass
    assert "switch.log" in str(failure.value)


def test_says_that_it_died(kind: str, directory: Path) -> None:
    with CLASSES[kind](directory, 1) as switch:
        assert switch.pid is not None
        os.kill(switch.pid, signal.SIGKILL)
        deadline = time.monotonic() + DEADLINE
        while switch.alive():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(ChildFailedError, match=f"switch \\({kind}\\): killed by SIGKILL"):
            switch.check()


def test_ends_even_if_sigterm_does_not_do(
    kind: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "GRACE", 0.2)
    with CLASSES[kind](directory, 1) as switch:
        pid = switch.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # a stopped process does not act on SIGTERM
    assert not running(pid)


def test_ends_no_other(kind: str, directory: Path) -> None:
    """Not even another switch that the same program runs."""
    for name in ("a", "b"):
        (directory / name).mkdir()
    with CLASSES[kind](directory / "a", 1) as staying:
        with CLASSES[kind](directory / "b", 1):
            pass
        staying.check()
        wait_for_server(staying.grpc_address, 5.0)


def test_with_others_watching(kind: str, directory: Path) -> None:
    """Started among other processes, as the demo does."""
    switch = CLASSES[kind](directory, 1)
    with pytest.raises(LabError, match="not started"):
        switch.check()
    with Processes() as processes:
        log = directory / "other.log"
        switch.start(processes, log)
        switch.wait_ready()
        assert [child.log for child in processes.children] == [log]
        switch.stop()
        assert processes.children == []
        switch.stop()


@pytest.mark.root
@pytest.mark.bmv2
def test_any_number_of_bmv2_run_at_once(directory: Path) -> None:
    """With Thrift, as p4lang builds it, all but the first would fail at its default port."""
    if reason := bmv2.unavailable():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        switches = []
        for number in range(3):
            own = directory / str(number)
            own.mkdir()
            switches.append(stack.enter_context(bmv2.Bmv2Switch(own, 1)))
        for switch in switches:
            switch.check()
            assert "bind" not in switch.log.read_text()


LAUNCHER = """
import sys, time
from pathlib import Path
from p4reduce_lab.switches.bmv2 import Bmv2Switch
from p4reduce_lab.switches.embedded import EmbeddedSwitch
classes = {"embedded": EmbeddedSwitch, "bmv2": Bmv2Switch}
with classes[sys.argv[1]](Path(sys.argv[2]), 2) as switch:
    print(switch.pid, switch.interface, flush=True)
    time.sleep(60)
"""


def test_nothing_is_left_when_the_launcher_is_killed(kind: str, directory: Path) -> None:
    """SIGKILL, of which it cannot tell anybody: no process, no interface."""
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, kind, str(directory)], stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        said = launcher.stdout.readline().split()
        launcher.kill()
    pid, interface = int(said[0]), said[1]
    is_socket = interface.startswith("unix:")
    wait_until_gone(pid, "no interface" if is_socket else interface.removesuffix("{port}"))


def test_captures(kind: str, directory: Path) -> None:
    with CLASSES[kind](directory, 2, pcap=True):
        pass
    assert len(list(directory.glob("*.pcap"))) >= 2


def test_long_paths_are_refused_by_name(kind: str, directory: Path) -> None:
    with pytest.raises(LabError, match="at most 107 bytes"):
        CLASSES[kind](directory / ("x" * 100), 1)


@pytest.mark.root
@pytest.mark.bmv2
def test_offloads_and_ipv6_are_off(directory: Path) -> None:
    if reason := bmv2.unavailable():
        pytest.skip(reason)
    with bmv2.Bmv2Switch(directory, 1) as switch:
        for name in (switch.ports[1], switch.interface.format(port=1)):
            shown = subprocess.run(
                ["ethtool", "-k", name], capture_output=True, text=True, check=True
            ).stdout
            for feature in (
                "rx-checksumming",
                "tx-checksumming",
                "scatter-gather",
                "tcp-segmentation-offload",
                "generic-segmentation-offload",
                "generic-receive-offload",
            ):
                assert f"{feature}: off" in shown
            ipv6 = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
            assert not ipv6.exists() or ipv6.read_text().strip() == "1"


def test_bmv2_is_missed_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = bmv2.unavailable()
    assert reason is not None
    assert "simple_switch_grpc is not on PATH" in reason
