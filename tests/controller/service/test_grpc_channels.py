# SPDX-License-Identifier: Apache-2.0
"""Where gRPC's calls go: never to a site's proxy by themselves, and to any path of a socket."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from controller_harness import DEADLINE, eventually
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient
from p4reduce.control.controller_address import parse_address
from p4reduce.errors import ConfigurationError
from p4reduce_common.grpc_channels import open_channel, target
from p4reduce_controller.cli.command_line import cli as controller
from p4reduce_switch.cli import cli as switch
from p4reduce_switch.p4runtime.listen_address import parse_grpc_address

RANK = """
import numpy, p4reduce
with p4reduce.init() as comm:
    print(comm.allreduce(numpy.full(1000, comm.rank + 1, numpy.int32))[7])
"""


class Proxy:
    """Listens as a site's proxy would, notes what it is asked for, and hangs up."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(DEADLINE)
                said = connection.recv(1000)
                if said == b"end":
                    return
                self.asked.append(said)

    def close(self) -> None:
        with socket.create_connection(self._listener.getsockname()) as last:
            last.sendall(b"end")
        self._thread.join()
        self._listener.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with closing(Proxy()) as proxy:
        yield proxy


@contextmanager
def serving(
    directory: Path, address: str, environment: Mapping[str, str], *options: str
) -> Iterator[dict[str, str]]:
    """A switch and a controller as users start them; yields what workers need.

    `address` is for both, with {} in the place of "switch" and "controller".
    """
    environment = {**os.environ, **environment}

    def start(*command: str) -> str:
        ready = directory / f"{command[0]}.ready"
        words = [sys.executable, "-m", *command, "--ready-file", str(ready)]
        with (directory / f"{command[0]}.log").open("w") as log:
            process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
        stack.callback(process.wait, DEADLINE)
        stack.callback(process.terminate)
        eventually(lambda: ready.exists() or process.poll() is not None, "it is ready")
        assert process.poll() is None, (directory / f"{command[0]}.log").read_text()
        facts = json.loads(ready.read_text())
        return str(facts.get("grpc_addr") or facts["address"])

    with ExitStack() as stack:
        ports = [f"--port={n}=unix:{directory}/port{n}.sock" for n in (1, 2)]
        grpc_addr = ("--grpc-addr", address.format("switch"))
        switch = start("p4reduce_switch", *grpc_addr, *ports, *options)
        controller = start(
            "p4reduce_controller",
            "serve",
            "--switch",
            switch,
            "--ports",
            "1-2",
            "--listen",
            address.format("controller"),
            "--state-dir",
            str(directory / "state"),
        )
        yield {
            "P4REDUCE_CONTROLLER": controller,
            "P4REDUCE_INTERFACE": f"unix:{directory}/port{{port}}.sock",
        }


def sums(environment: Mapping[str, str]) -> list[str]:
    """What two ranks say of the sum of 1 and 2."""
    with ExitStack() as stack:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK],
                env={
                    **os.environ,
                    **environment,
                    "P4REDUCE_RANK": str(rank),
                    "P4REDUCE_WORLD_SIZE": "2",
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        for rank in ranks:
            stack.callback(rank.kill)
        return [rank.communicate(timeout=DEADLINE)[0].strip() for rank in ranks]


def run(command: str, environment: Mapping[str, str]) -> str:
    words = [sys.executable, "-m", "p4reduce_controller", *command.split()]
    done = subprocess.run(
        words, env={**os.environ, **environment}, capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0"])
def test_a_proxy_in_the_environment_is_not_asked(
    tmp_path: Path, proxy: Proxy, address: str
) -> None:
    """Switch, controller, command line, doctor and ranks, all at TCP addresses."""
    environment = dict.fromkeys(["http_proxy", "https_proxy", "grpc_proxy"], proxy.url)
    environment |= {"no_proxy": "", "no_grpc_proxy": ""}
    with serving(tmp_path, address, environment) as found:
        environment |= found
        assert sums(environment) == ["3", "3"]
        assert "switch" in run("switch status", environment)
        run("doctor", environment)
    assert not proxy.asked


def test_an_option_turns_the_proxy_on(monkeypatch: pytest.MonkeyPatch, proxy: Proxy) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv("P4REDUCE_GRPC_PROXY", "1")
    monkeypatch.delenv("no_proxy", raising=False)
    with (
        ControlClient("192.0.2.7:9560") as client,
        pytest.raises(Exception, match="no controller answers"),
    ):
        client.call(client.stub.ListJobs, pb.ListJobsRequest(), timeout=DEADLINE)
    assert proxy.asked[0].startswith(b"CONNECT 192.0.2.7:9560 ")


@pytest.mark.parametrize("text", ["no", "false", "off", "2"])
def test_what_is_neither_0_nor_1_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """It would be taken for "yes"."""
    monkeypatch.setenv("P4REDUCE_GRPC_PROXY", text)
    says = f"P4REDUCE_GRPC_PROXY={text!r}: 1 is possible, to use a proxy, or 0"
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        ControlClient("192.0.2.7:9560")
    for command, words in (
        (controller, ["job", "list"]),
        (switch, ["--cores=2", "--port=1=unix:p"]),
    ):
        result = CliRunner().invoke(command, words)
        assert (result.exit_code, says in result.output) == (2, True), result.output


@pytest.mark.long
@pytest.mark.parametrize("relative", [False, True])
def test_paths_of_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool) -> None:
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "50% #1 why? a%20b"
    directory.mkdir()
    address = f"unix:{directory.relative_to(tmp_path) if relative else directory}/{{}}.sock"
    with serving(directory, address, {}, "--cores", "2") as found:
        assert found["P4REDUCE_CONTROLLER"] == address.format("controller")
        assert sums(found) == ["3", "3"]
        assert "switch" in run("switch status", found)
        run("doctor", found)
        assert (directory / "switch.sock").is_socket()
        assert (directory / "controller.sock").is_socket()


@pytest.mark.parametrize(
    "name", ["50%", "a%20b", "%41", "%zz", "#1", "why?", "a b", "naïve", "a=b&c;d", "a:b", "[x]"]
)
def test_any_name_of_a_socket(tmp_path: Path, name: str) -> None:
    """A server and a client find the same file, which has the name as it was given."""
    path = tmp_path / name
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_insecure_port(target(f"unix:{path}"))
    server.start()
    assert [one.name for one in tmp_path.iterdir()] == [name]
    with open_channel(f"unix:{path}") as channel, pytest.raises(grpc.RpcError) as answered:
        channel.unary_unary("/x/y")(b"", timeout=DEADLINE)
    assert answered.value.code() is grpc.StatusCode.UNIMPLEMENTED
    server.stop(0).wait()


def test_a_comma_is_refused_where_the_path_is_given() -> None:
    for parse in (parse_address, parse_grpc_address, open_channel):
        with pytest.raises(ValueError, match=r"'unix:/run/a,b\.sock': .* cannot have a comma"):
            parse("unix:/run/a,b.sock")


def test_a_path_that_two_slashes_begin(tmp_path: Path) -> None:
    """gRPC would take what follows them for a host."""
    with open_channel(f"unix:///{tmp_path}/x.sock") as channel, pytest.raises(grpc.RpcError) as no:
        channel.unary_unary("/x/y")(b"", timeout=DEADLINE)
    assert f"{tmp_path}/x.sock" in str(no.value.details())
