# SPDX-License-Identifier: Apache-2.0
"""Networks as they are deployed: ranks sum over them, what is killed is mended, nothing is left."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
import pytest
from launched import DEADLINE, ENVIRONMENT, Launched
from p4reduce import launch
from p4reduce_lab import local_network
from thread_faults import ThreadFault, fault_in_threads

pytestmark = pytest.mark.usefixtures("unplaced")


@pytest.fixture
def unplaced() -> Iterator[None]:
    with local_network.environment({}):
        yield


def sums(network: launch.Network, job: str = "first") -> list[float]:
    """What each rank gets; the ranks are threads."""
    ranks = range(network.ranks)
    got = dict.fromkeys(ranks, 0.0)

    def rank_of(rank: int) -> None:
        with p4reduce.init(rank, network.ranks, job=job) as comm:
            got[rank] = float(comm.allreduce(np.full(3000, rank + 1, np.float32))[-1])

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in ranks]
    with local_network.environment(network.variables):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
    return list(got.values())


def gone(pids: dict[str, int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


def until(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def sockets_of(network: launch.Network) -> tuple[Path, str]:
    """The directory of a local network, and the address of its UDP ports."""
    directory = Path(network.variables["P4REDUCE_CONTROLLER"].removeprefix("unix:")).parent
    return directory, network.variables["P4REDUCE_INTERFACE"].split(":")[1]


def udp_listeners(address: str) -> list[str]:
    """The UDP sockets at an address, as /proc/net/udp has them."""
    octets = socket.inet_aton(address)[::-1].hex().upper()
    lines = Path("/proc/net/udp").read_text().splitlines()
    return [line for line in lines if line.split()[1].startswith(f"{octets}:")]


@pytest.mark.parametrize(
    ("ranks", "arguments", "switches"),
    [
        pytest.param(2, {}, {"switch"}, id="udp"),
        pytest.param(
            2,
            {"switches": 2, "unix": True},
            {"a", "b"},
            marks=pytest.mark.long,
            id="side by side",
        ),
        pytest.param(
            3,
            {"tree": "2x2"},
            {"root", "leaf-1", "leaf-2"},
            marks=pytest.mark.long,
            id="tree",
        ),
    ],
)
def test_ranks_sum_and_nothing_is_left(
    ranks: int, arguments: dict[str, Any], switches: set[str]
) -> None:
    with launch.start(ranks, **arguments) as network:
        pids = dict(network.pids)
        assert pids.keys() == {"network", "controller"} | switches
        directory, address = sockets_of(network)
        assert directory.stat().st_mode & 0o777 == 0o700
        assert arguments.get("unix") or udp_listeners(address)
        assert sums(network) == [ranks * (ranks + 1) / 2] * ranks
        assert network.news == ()
    until(lambda: gone(pids))
    assert not directory.exists()
    assert arguments.get("unix") or not udp_listeners(address)


def test_hosts_that_differ_get_tls_and_a_key(tmp_path: Path) -> None:
    """127/8 is this host's alone; any other address of it brings TLS."""
    address = own_address()
    with launch.start(2, address, logs=tmp_path / "logs") as network:
        variables = dict(network.variables)
        assert variables["P4REDUCE_CONTROLLER"].startswith(f"{address}:")
        assert variables["P4REDUCE_TLS_CERT"].startswith("-----BEGIN CERTIFICATE-----")
        assert "TLS" in network.text
        assert sums(network) == [3.0, 3.0]
        for lacking, error, says in (
            ("P4REDUCE_TLS_CERT", p4reduce.ConfigurationError, "TLS requires all of"),
            ("P4REDUCE_UDP_KEY", p4reduce.P4ReduceError, "do not have the same key"),
            ("P4REDUCE_TOKEN", None, ""),
        ):
            with local_network.environment({**variables, lacking: ""}):
                if error is not None:
                    with pytest.raises(error, match=says):
                        p4reduce.init(0, 1 if error is None else 2, timeout=3.0)
    assert {log.name for log in (tmp_path / "logs").glob("*.log")} == {
        "switch.log",
        "controller.log",
    }


@pytest.mark.long
@pytest.mark.parametrize("remote", [False, True], ids=["loopback", "others"])
def test_ipv6(remote: bool) -> None:
    address = own_ipv6() if remote else "::1"
    with launch.start(2, address) as network:
        variables = dict(network.variables)
        assert variables["P4REDUCE_INTERFACE"].startswith(f"udp:[{address}]:")
        if remote:
            assert variables["P4REDUCE_CONTROLLER"].startswith(f"[{address}]:")
        assert sums(network) == [3.0, 3.0]


def own_ipv6() -> str:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("2001:db8::1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this host has no IPv6 address but loopback's")
        return str(probe.getsockname()[0])


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this host has no address but loopback's")
        return str(probe.getsockname()[0])


@pytest.mark.long
def test_the_lease_is_the_controllers() -> None:
    with launch.start(1, unix=True, lease=77.5) as network:
        command = Path(f"/proc/{network.pids['controller']}/cmdline").read_bytes().split(b"\0")
        assert command[command.index(b"--lease") + 1] == b"77.5"
        assert sums(network) == [1.0]


@pytest.mark.long
def test_the_lease_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_LEASE", "44.5")
    for argument, used in ((0.0, b"44.5"), (77.5, b"77.5")):
        with launch.start(1, unix=True, lease=argument) as network:
            command = Path(f"/proc/{network.pids['controller']}/cmdline").read_bytes().split(b"\0")
            assert command[command.index(b"--lease") + 1] == used
    for wrong, said in (("ten", "P4REDUCE_LEASE=.ten. is not a number"), ("0.01", "a lease of")):
        monkeypatch.setenv("P4REDUCE_LEASE", wrong)
        with pytest.raises(p4reduce.ConfigurationError, match=said):
            launch.start(1, unix=True)


@pytest.mark.long
@pytest.mark.parametrize("victim", ["switch", "controller"])
def test_what_is_killed_is_started_again_and_calls_go_on(victim: str) -> None:
    with launch.start(2, unix=True) as network:
        done = threading.Event()

        def kill() -> None:
            os.kill(network.pids[victim], signal.SIGKILL)
            until(lambda: network.news)
            done.set()

        killer = threading.Thread(target=kill)
        before = dict(network.pids)

        def rank_of(rank: int) -> None:
            with p4reduce.init(rank, 2) as comm:
                for number in range(2_000_000):
                    if number == 20 and rank == 0:
                        killer.start()
                    assert comm.allreduce(np.ones(4, np.float32)).tolist() == [2.0] * 4
                    # Both stop at the same call.
                    over = np.array([done.is_set()], np.int32)
                    if comm.allreduce(over).tolist() == [2]:
                        break

        with local_network.environment(network.variables):
            threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(DEADLINE)
        killer.join(DEADLINE)
        assert network.news == (f"{victim} ended (killed by SIGKILL): started again",)
        assert network.pids[victim] != before[victim]
        # Another name: whether the first job's ranks have left is not sure without a controller.
        assert sums(network, "second") == [3.0, 3.0]
        pids = {**before, **{f"new {name}": pid for name, pid in network.pids.items()}}
    until(lambda: gone(pids))


@pytest.mark.long
def test_what_ends_again_and_again_ends_the_network() -> None:
    with launch.start(1, unix=True) as network:
        pids = dict(network.pids)
        for number in range(4):
            until(lambda number=number: len(network.news) == number)  # type: ignore[misc]
            os.kill(network.pids["switch"], signal.SIGKILL)
        with pytest.raises(p4reduce.LaunchError, match="switch has ended 4 times within 60 s"):
            until(lambda: network.check())
    until(lambda: gone(pids))


@pytest.mark.long
def test_who_waits_for_the_end_hears_of_a_kill_but_not_of_close() -> None:
    heard: list[p4reduce.LaunchError] = []
    with launch.start(1, unix=True) as network:
        network.when_ended(heard.append)
    with launch.start(1, unix=True) as network:
        assert not heard
        network.when_ended(heard.append)
        os.kill(network.pids["network"], signal.SIGKILL)
        until(lambda: heard)
    assert len(heard) == 1
    assert "killed by signal 9" in str(heard[0])


def test_a_network_that_nobody_watches_any_more() -> None:
    fault = ThreadFault("p4reduce-network", "Network.check")
    fault.arm()
    heard: list[launch.LaunchError] = []
    with launch.start(1, unix=True) as network:
        with fault_in_threads(fault):
            network.when_ended(heard.append)
        os.kill(network.pids["network"], signal.SIGKILL)
        until(lambda: heard)
    assert [error.__cause__ for error in heard] == [fault.error]
    assert repr(fault.error) in str(heard[0])


def test_a_network_that_is_killed_leaves_nothing_and_says_so() -> None:
    with launch.start(1, unix=True) as network:
        directory, _ = sockets_of(network)
        pids = dict(network.pids)
        os.kill(pids["network"], signal.SIGKILL)
        with pytest.raises(p4reduce.LaunchError, match="killed by signal 9"):
            until(lambda: network.check())
        until(lambda: gone({name: pid for name, pid in pids.items() if name != "network"}))
        until(lambda: not directory.exists())


_STARTS = """
import os, sys, time
from p4reduce import launch
network = launch.start(1, unix=True)
child = 0
if sys.argv[1] == "fork":
    child = os.fork()  # which holds the other end of the network's pipe
    if child == 0:
        time.sleep(1000)
print(child, *network.pids.values(), flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_network_ends_with_whoever_started_it(how: str) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", _STARTS, how],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    assert starter.stdout is not None
    children: list[int] = []
    try:
        child, *every = map(int, starter.stdout.readline().split())
        children += [child] if child else []
        pids = {str(number): pid for number, pid in enumerate(every)}
        assert len(pids) == 3
        os.kill(starter.pid, signal.SIGKILL)
        starter.wait(DEADLINE)
        until(lambda: gone(pids))
    finally:
        starter.kill()
        starter.wait(DEADLINE)
        starter.stdout.close()
        for child in children:
            os.kill(child, signal.SIGKILL)


_BOUND = """
import os
from p4reduce import launch
every = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(every)})
with launch.start(2) as network:
    for name, pid in network.pids.items():
        assert os.sched_getaffinity(pid) >= every, (name, os.sched_getaffinity(pid))
assert os.sched_getaffinity(0) == {min(every)}
"""


@pytest.mark.long
def test_the_network_of_a_bound_rank_has_all_cpus() -> None:
    """As that of mpirun --bind-to core, or of taskset."""
    done = subprocess.run(
        [sys.executable, "-c", _BOUND], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


_CUSTOMISATION = """
import atexit, os, sys
print("module load site/2026")
print('{"news": "nobody said that", "pids": {}}')
sys.stdout.write("without an end of the line")
sys.stdout.flush()
atexit.register(print, '{"failed": "it did not"}')
"""


def test_a_site_may_write_to_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every Python that is started does, before the program begins and after it ends."""
    (tmp_path / "sitecustomize.py").write_text(_CUSTOMISATION)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with launch.start(2) as network:
        assert not network.news
        assert network.pids["switch"]
        assert sums(network) == [3, 3]
    with pytest.raises(p4reduce.LaunchError, match="cannot write results to /proc/nowhere"):
        launch.start(2, logs="/proc/nowhere")


@pytest.mark.parametrize(
    ("ranks", "arguments", "error", "says"),
    [
        (0, {}, ValueError, "ranks"),
        (2, {"host": 5}, TypeError, "host=5: a string"),
        (2, {"tree": 2}, TypeError, "tree=2: a string"),
        (2, {"lease": "x"}, TypeError, "lease='x'"),
        (2, {"lease": -1}, ValueError, "lease=-1"),
        (2, {"link_rate": "1G"}, TypeError, "link_rate='1G': a number of bit/s"),
        (2, {"unix": "no"}, TypeError, "unix='no'"),
        (2, {"logs": 5}, TypeError, "logs=5: a path"),
        (2, {"timeout": 0}, ValueError, "timeout=0"),
        (2, {"host": "nowhere"}, p4reduce.ConfigurationError, "not an IP address"),
        (2, {"host": "203.0.113.7"}, p4reduce.ConfigurationError, "not an address of this host"),
        (2, {"lease": 0.01}, p4reduce.ConfigurationError, "a lease of 0.01 s; it must be 0.1 to"),
        (2, {"tree": "9x9"}, p4reduce.ConfigurationError, "81 ranks, and 2"),
        (2, {"logs": "/proc/nowhere"}, p4reduce.LaunchError, "cannot write results to"),
    ],
)
def test_what_cannot_start_says_why(
    ranks: int, arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        launch.start(ranks, **arguments)


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_the_command_writes_the_variables_and_takes_them_away(tmp_path: Path) -> None:
    deploy = Launched(tmp_path, "deploy", "-n", "2", "--variables", "net.sh")
    deploy.wait_for("Ctrl-C ends it")
    script = tmp_path / "net.sh"
    assert script.stat().st_mode & 0o777 == 0o600
    token = re.search(r"P4REDUCE_TOKEN=(\S+)", script.read_text())
    assert token is not None
    assert token[1] not in deploy.output
    rank = f"{sys.executable} -c 'import p4reduce, numpy; c = p4reduce.init(); "
    rank += 'print(f"rank {c.rank}:", c.allreduce(numpy.ones(2, numpy.float32))); c.close()\''
    both = ". ./net.sh; export P4REDUCE_WORLD_SIZE=2; "
    both += f"P4REDUCE_RANK=0 {rank} > 0 & P4REDUCE_RANK=1 {rank} > 1; wait; cat 0 1"
    done = subprocess.run(
        ["bash", "-c", both], capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT,
        timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.stdout.split("\n")[:2] == ["rank 0: [2. 2.]", "rank 1: [2. 2.]"], done.stderr
    deploy.process.send_signal(signal.SIGTERM)
    assert deploy.wait() == 128 + signal.SIGTERM
    assert not script.exists()


@pytest.fixture(autouse=True)
def sockets_are_closed() -> Iterator[None]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 10
