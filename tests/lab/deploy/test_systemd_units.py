# SPDX-License-Identifier: Apache-2.0
"""The systemd units: systemd accepts them, they are hardened, and what they start serves a job."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "deploy" / "systemd"
BIN = Path(sys.executable).parent
DEADLINE = 200.0
EXPOSURE = 20  # tenths; 0 is best, and systemd calls below 2.0 "OK"
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, PR_SET_NO_NEW_PRIVS = 65, 1, 38

with_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def unit(name: str) -> list[tuple[str, str]]:
    lines = (UNITS / f"p4reduce-{name}.service").read_text().splitlines()
    return [
        (key, value)
        for key, sign, value in (line.partition("=") for line in lines)
        if sign and not key.startswith("#")
    ]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as they would be on a host that has this environment in /opt/p4reduce."""
    for path in UNITS.glob("*.service"):
        text = path.read_text().replace("/opt/p4reduce/bin", str(BIN))
        # Whether the page is installed is no matter of the unit.
        text = re.sub(r"(?m)^(Documentation|User|Group)=.*\n", "", text)
        (tmp_path / path.name).write_text(text)
    return tmp_path


@with_systemd
def test_systemd_accepts_them(installed: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *installed.glob("*.service")],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    ours = [line for line in done.stderr.splitlines() if "p4reduce" in line]
    assert not ours
    assert done.returncode == 0, done.stderr


@with_systemd
@pytest.mark.parametrize("name", ["switch", "controller"])
def test_they_are_hardened(name: str) -> None:
    path = UNITS / f"p4reduce-{name}.service"
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", path],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge a unit that is not installed")
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr


class Host:
    """Starts units as systemd does: their command and environment, without PID 1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.settimeout(DEADLINE)
        self._manager.bind(str(folder / "notify"))
        self._places = {
            "/run/p4reduce-switch": folder / "run",
            "/var/cache/p4reduce": folder / "cache",
            "/var/lib/p4reduce": folder / "state",
            "/opt/p4reduce/bin": BIN,
        }
        for place in ("run", "cache", "state"):
            (folder / place).mkdir(mode=0o700, exist_ok=True)

    def close(self) -> None:
        self._manager.close()

    def _here(self, text: str) -> str:
        for there, here in self._places.items():
            text = text.replace(there, str(here))
        return text

    def command(self, name: str, given: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        """The command line and environment of a unit, with `given` as its EnvironmentFile."""
        settings = unit(name)
        variables = {k: v for k, v in os.environ.items() if not k.startswith("P4REDUCE_")}
        for key, value in settings:
            if key == "Environment":
                variable, _, text = value.partition("=")
                variables[variable] = self._here(text)
        variables.update(given, NOTIFY_SOCKET=str(self.folder / "notify"))
        [line] = [value for key, value in settings if key == "ExecStart"]
        words = []
        for word in shlex.split(self._here(line)):
            if word.startswith("$") and not word.startswith("${"):
                words += variables[word[1:]].split()
            else:
                words.append(re.sub(r"\$\{(\w+)\}", lambda m: variables[m[1]], word))
        return words, variables

    @contextmanager
    def running(self, name: str, **given: str) -> Iterator[subprocess.Popen[bytes]]:
        """A unit that has said that it is ready, confined as far as that goes without systemd."""
        words, variables = self.command(name, given)
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                words, env=variables, stdout=output, stderr=output, preexec_fn=confined()
            )
        try:
            while b"READY=1" not in (said := self._manager.recv(4096)).split(b"\n"):
                assert said.startswith(b"STOPPING"), said
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE) == 0, log.read_text()
        except TimeoutError:
            pytest.fail(f"{name} never said that it is ready: {log.read_text()}")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def confined() -> Callable[[], None]:
    """As NoNewPrivileges and MemoryDenyWriteExecute; an old kernel does not know the second."""
    prctl = ctypes.CDLL(None).prctl

    def confine() -> None:
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)

    return confine


def free_tcp_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


RANK = """
import sys
import numpy, p4reduce
with p4reduce.init() as comm:
    for step in range(int(sys.argv[1])):
        got = comm.allreduce(numpy.ones(5000, numpy.float32))
        assert (got == 2).all()
        if step == 0 and comm.rank == 0:
            print("first", flush=True)
        if len(sys.argv) > 2 and step == 0:
            import pathlib, time
            end = time.monotonic() + 180
            while not pathlib.Path(sys.argv[2]).exists():
                assert time.monotonic() < end
                time.sleep(0.05)
"""


def ranks(port: int, udp: int, *arguments: object) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "P4REDUCE_CONTROLLER": f"127.0.0.1:{port}",
                "P4REDUCE_INTERFACE": f"udp:127.0.0.1:{udp}+{{rank}}",
                "P4REDUCE_RANK": str(rank),
                "P4REDUCE_WORLD_SIZE": "2",
                "P4REDUCE_JOB": "training",
            },
        )
        for rank in range(2)
    ]


@pytest.mark.long
@pytest.mark.parametrize("cores", [1, pytest.param(2, id="two cores")])
def test_an_upgrade_of_the_controller_ends_no_job(tmp_path: Path, cores: int) -> None:
    """Two ranks sum, the controller is stopped and started again, and they sum on."""
    from p4reduce_lab.switches.udp_ports import free_udp_ports

    udp, tcp = free_udp_ports("127.0.0.1", 2), free_tcp_port()
    options = {
        "P4REDUCE_LISTEN": f"127.0.0.1:{tcp}",
        "P4REDUCE_CONTROLLER_OPTIONS": "--ports=1-2 --lease=60",
    }
    with ExitStack() as ends:
        host = Host(tmp_path)
        ends.callback(host.close)
        ports = f"--port=1-2=udp:127.0.0.1:{udp} --cores={cores}"
        ends.enter_context(host.running("switch", P4REDUCE_SWITCH_OPTIONS=ports))
        go = tmp_path / "go"
        with host.running("controller", **options):
            started = ranks(tcp, udp, 3, go)
            for rank in started:
                ends.callback(rank.wait, DEADLINE)
                ends.callback(rank.kill)
            assert started[0].stdout is not None
            assert started[0].stdout.readline() == "first\n"
        assert list((tmp_path / "state").glob("jobs-*")), "no job was kept"
        with host.running("controller", **options):
            go.touch()
            assert [rank.wait(DEADLINE) for rank in started] == [0, 0]
        log = (tmp_path / "controller.log").read_text()
        assert f"jobs-taken-up {cores} from a former life" in log, log  # a job per core
