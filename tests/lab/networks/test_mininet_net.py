# SPDX-License-Identifier: Apache-2.0
"""Mininet's hosts and links: as asked for, and gone afterwards however the run ends."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from p4reduce_lab.errors import LabError
from p4reduce_lab.networks import mininet_net
from p4reduce_lab.networks.mininet_net import MininetNetwork

REASON = mininet_net.unavailable()
needs_mininet = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def interfaces(pid: int) -> set[str]:
    """The near ends of a process's Mininet networks that are up."""
    shown = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    names = (line.split(":")[1].strip().split("@")[0] for line in shown.splitlines())
    return {name for name in names if re.fullmatch(rf"p4r{pid}-\d+", name)}


def on_host(network: MininetNetwork, rank: int, *command: str) -> str:
    answer = subprocess.run(
        [*network.prefix(rank), *command], capture_output=True, text=True, check=True
    )
    return answer.stdout


@pytest.mark.mininet
@pytest.mark.root
@needs_mininet
class TestNetwork:
    def test_hosts_have_their_address_and_no_ipv6(self) -> None:
        with MininetNetwork(2) as network:
            shown = on_host(network, 1, "ip", "addr", "show", "dev", "eth0")
            assert f"inet {network.address(1)} " in shown
            assert "inet6" not in shown
            assert "mtu 1500" in shown

    def test_offloads_are_off_on_both_ends(self) -> None:
        with MininetNetwork(1) as network:
            far = on_host(network, 0, "ethtool", "-k", "eth0")
            near = subprocess.run(
                ["ethtool", "-k", network.row()[1]], capture_output=True, text=True, check=True
            ).stdout
        for shown in (far, near):
            for feature in ("tx-checksumming", "tcp-segmentation-offload", "scatter-gather"):
                assert f"{feature}: off" in shown

    def test_nothing_is_left_when_it_is_left(self) -> None:
        with MininetNetwork(2) as network:
            assert interfaces(os.getpid()) == set(network.row().values())
        assert not interfaces(os.getpid())

    def test_nothing_is_left_when_its_process_is_killed(self) -> None:
        program = (
            "import time; from p4reduce_lab.networks.mininet_net import MininetNetwork\n"
            "with MininetNetwork(2): print('up', flush=True); time.sleep(60)"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            assert len(interfaces(process.pid)) == 2
            process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 120
        while interfaces(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not interfaces(process.pid)

    def test_two_networks_at_once_do_not_meet(self) -> None:
        program = (
            "import sys; from p4reduce_lab.networks.mininet_net import MininetNetwork\n"
            "with MininetNetwork(1): print('up', flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            assert other.stdout.readline() == b"up\n"
            with MininetNetwork(1) as network:
                assert network.row()[1] == f"p4r{os.getpid()}-1"
            assert f"p4r{other.pid}-1" in interfaces(other.pid)
            other.stdin.close()

    def test_bandwidth_is_limited_on_both_ends(self) -> None:
        with MininetNetwork(1, bandwidth=50) as network:
            far = on_host(network, 0, "tc", "class", "show", "dev", "eth0")
            near = subprocess.run(
                ["tc", "class", "show", "dev", network.row()[1]],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        assert "rate 50Mbit" in far
        assert "rate 50Mbit" in near

    def test_other_loggers_stay_ordinary_ones(self) -> None:
        with MininetNetwork(1):
            assert type(logging.getLogger("p4reduce.made-after-mininet")) is logging.Logger

    @pytest.mark.parametrize("hosts", [0, -1, 65])
    def test_number_of_hosts_out_of_range(self, hosts: int) -> None:
        with pytest.raises(LabError, match=rf"^{hosts} hosts; .* 1 to 64"):
            MininetNetwork(hosts)

    @pytest.mark.parametrize(
        ("bandwidth", "said"), [(0.0, "0bit"), (-5.0, "-5Mbit"), (2000.0, "2Gbit")]
    )
    def test_bandwidth_out_of_range(self, bandwidth: float, said: str) -> None:
        with pytest.raises(LabError, match=f"bandwidth of {said}; it must be above 0"):
            MininetNetwork(1, bandwidth)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert mininet_net.unavailable() == "Mininet needs root: run it with sudo"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nonexistent")
    reason = mininet_net.unavailable()
    assert reason is not None
    assert "apt-get install ethtool iproute2 mininet" in reason


_WITHOUT_DISTUTILS = """
import sys
lacking = set(sys.argv[1:])
for finder in list(sys.meta_path):
    def find(name, *rest, find=getattr(finder, "find_spec")):
        return None if name.partition(".")[0] in lacking else find(name, *rest)
    other = type("Finder", (), {"find_spec": staticmethod(find)})
    sys.meta_path[sys.meta_path.index(finder)] = other
for name in [name for name in sys.modules if name.partition(".")[0] in lacking]:
    del sys.modules[name]
from p4reduce_lab.networks import mininet_net
print(mininet_net.unavailable())
assert "distutils" not in sys.modules
if mininet_net.unavailable() is None:
    import mininet.node
    old, new = map(mininet.node.StrictVersion, ("1.9.3", "1.10"))
    assert old < new
"""


@pytest.mark.mininet
@pytest.mark.root
@needs_mininet
@pytest.mark.parametrize(
    ("lacking", "says"),
    [
        (["distutils"], "None"),
        (["distutils", "mininet"], "No module named 'mininet': apt-get install mininet"),
        (["distutils", "pty"], "(No module named 'pty'): make the environment with the Python of"),
    ],
)
def test_pythons_without_distutils(lacking: list[str], says: str) -> None:
    """From 3.12 on there is none, and Debian's Mininet imports it."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_DISTUTILS, *lacking], capture_output=True, text=True
    )
    assert says in done.stdout, done.stderr
    assert done.returncode == 0, done.stderr
