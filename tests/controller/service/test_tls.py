# SPDX-License-Identifier: Apache-2.0
"""TLS for the control API and for P4Runtime: who is let in, and what the others are told."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import p4reduce
import pytest
from controller_harness import DEADLINE, RunningController, SwitchProcess, cli_here, eventually
from made_certificates import files, make, needs_openssl
from p4reduce import variables
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient, NoAnswerError
from p4reduce.control.tls import TlsError, TlsFiles
from p4reduce_controller.fabric.compiled_program import load_program
from p4reduce_controller.fabric.p4client import NoSwitchAnswerError, SwitchClient
from p4reduce_controller.service.listen import ListenError, prepare
from p4reduce_lab.switches.bmv2 import bmv2_command

Start = Callable[..., RunningController]

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the CA that everybody here trusts."""
    directory = tmp_path_factory.mktemp("ours")
    make(directory, "server=127.0.0.1,localhost", "client", "elsewhere=10.9.9.9")
    make(directory, "expired=127.0.0.1", days=-1)
    return directory


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of another CA."""
    directory = tmp_path_factory.mktemp("theirs")
    make(directory, "server=127.0.0.1", "client")
    return directory


@pytest.fixture
def controller(start: Start, switch: SwitchProcess, ours: Path) -> RunningController:
    return start(switch, listen="127.0.0.1:0", tls=files(ours, "server"))


def unreachable(address: str, client: TlsFiles | None) -> str:
    with (
        ControlClient(address, client) as control,
        pytest.raises(NoAnswerError) as caught,
    ):
        control.call(control.stub.ListJobs, pb.ListJobsRequest())
    return str(caught.value)


# -- The control API -----------------------------------------------------------------------------


def test_both_sides_show_certificates(controller: RunningController, ours: Path) -> None:
    with ControlClient(controller.address, files(ours, "client")) as client:
        client.call(client.stub.ListJobs, pb.ListJobsRequest())


def test_a_client_without_a_certificate(controller: RunningController) -> None:
    told = unreachable(controller.address, None)
    assert "it speaks TLS, and requires a client certificate: give --tls-cert" in told


def test_a_client_of_another_ca(controller: RunningController, ours: Path, theirs: Path) -> None:
    stranger = replace(files(theirs, "client"), ca=ours / "ca.pem")
    told = unreachable(controller.address, stranger)
    assert f"it refuses our certificate {stranger.cert}" in told


def test_a_server_of_another_ca(controller: RunningController, ours: Path, theirs: Path) -> None:
    client = replace(files(ours, "client"), ca=theirs / "ca.pem")
    told = unreachable(controller.address, client)
    assert f"its certificate does not pass {theirs}/ca.pem: " in told


def test_a_server_by_another_name(start: Start, switch: SwitchProcess, ours: Path) -> None:
    controller = start(switch, listen="127.0.0.1:0", tls=files(ours, "elsewhere"))
    told = unreachable(controller.address, files(ours, "client"))
    assert "not valid for '127.0.0.1'" in told


def test_a_server_without_tls(start: Start, switch: SwitchProcess, ours: Path) -> None:
    controller = start(switch, listen="127.0.0.1:0")
    assert "it does not speak TLS" in unreachable(controller.address, files(ours, "client"))


@pytest.mark.parametrize("who", ["nobody", "another CA's", "expired"])
def test_the_server_looks_for_itself(
    controller: RunningController, ours: Path, theirs: Path, who: str
) -> None:
    """Whatever a client's own library would have refused to send."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ours / "ca.pem")
    if who != "nobody":
        shown = files(ours, "expired") if who == "expired" else files(theirs, "client")
        context.load_cert_chain(shown.cert, shown.key)
    context.set_alpn_protocols(["h2"])
    host, port = controller.address.split(":")
    with (
        socket.create_connection((host, int(port)), DEADLINE) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        assert secure.recv(1) == b"", "the server speaks to somebody that it does not know"


def test_the_command_line(controller: RunningController, ours: Path) -> None:
    client = files(ours, "client")
    options = [f"--tls-cert={client.cert}", f"--tls-key={client.key}", f"--tls-ca={client.ca}"]
    there = ["--controller", controller.address]
    assert cli_here(*there, *options, "job", "list").exit_code == 0
    without = cli_here(*there, "job", "list")
    assert without.exit_code == 3
    assert "it speaks TLS" in without.stderr
    some = cli_here(*there, *options[:2], "job", "list")
    assert some.exit_code == 2
    assert "not given: --tls-ca" in some.stderr


def test_workers(
    start: Start, mortal_switch: SwitchProcess, ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take theirs from the environment; init is as ever."""
    controller = start(mortal_switch, listen="127.0.0.1:0", tls=files(ours, "server"))
    client = files(ours, "client")
    for name, path in zip(variables.TLS, (client.cert, client.key, client.ca), strict=True):
        monkeypatch.setenv(name, str(path))
    sums: dict[int, list[float]] = {}

    def work(rank: int) -> None:
        with p4reduce.init(
            rank=rank,
            world_size=2,
            job="tls",
            controller=controller.address,
            interface=f"unix:{mortal_switch.port_path(rank + 1)}",
        ) as comm:
            sums[rank] = comm.allreduce(np.full(3, rank + 1.0, np.float32)).tolist()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert sums == {0: [3.0] * 3, 1: [3.0] * 3}


def test_a_worker_with_broken_files(
    controller: RunningController, switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variables.TLS[0], "/nowhere.pem")
    with pytest.raises(p4reduce.ConfigurationError, match=f"not given: {variables.TLS[1]}"):
        p4reduce.init(
            rank=0,
            world_size=1,
            controller=controller.address,
            interface=f"unix:{switch.port_path(4)}",
        )


# -- Where to listen -----------------------------------------------------------------------------


def test_beyond_loopback_with_tls(ours: Path) -> None:
    prepare("0.0.0.0:0", files(ours, "server"))


def test_an_expired_certificate_does_not_start(ours: Path) -> None:
    with pytest.raises(ListenError, match=r"expired\.pem: certificate has expired"):
        prepare("127.0.0.1:0", files(ours, "expired"))


# -- Files ---------------------------------------------------------------------------------------


def test_files_that_cannot_be_used(ours: Path, theirs: Path, tmp_path: Path) -> None:
    good = files(ours, "client")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
    wrong = {
        f"cannot read the TLS key {tmp_path}/none: No such file": replace(
            good, key=tmp_path / "none"
        ),
        f"cannot read the TLS CA {tmp_path}: it is a directory, and a file is needed": replace(
            good, ca=tmp_path
        ),
        f"{nonsense} is not a certificate": replace(good, cert=nonsense),
        f"{nonsense} is not a CA certificate": replace(good, ca=nonsense),
        "is not that of the certificate": replace(good, key=theirs / "client.key"),
        "certificate has expired": files(ours, "expired"),
    }
    for complaint, given in wrong.items():
        with pytest.raises(TlsError) as caught:
            given.channel_credentials()
        assert complaint in str(caught.value)
    good.check()


# -- P4Runtime -----------------------------------------------------------------------------------


@contextlib.contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.fixture(params=["embedded", "two cores", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def switch_with_tls(request: pytest.FixtureRequest, ours: Path, tmp_path: Path) -> Iterator[str]:
    """The P4Runtime address of a switch that speaks TLS."""
    server = files(ours, "server")
    if request.param != "bmv2":
        ready = tmp_path / "ready"
        command = [sys.executable, "-c", "from p4reduce_switch.cli import main; main()"]
        command += ["--grpc-addr", "127.0.0.1:0", "--ready-file", str(ready)]
        command += [f"--tls-cert={server.cert}", f"--tls-key={server.key}"]
        command += [f"--tls-ca={server.ca}"]
        if request.param == "two cores":
            command += ["--cores", "2"]
        with running(command, tmp_path / "log"):
            eventually(ready.exists, "the switch is up")
            yield json.loads(ready.read_text())["grpc_addr"]
        return
    if shutil.which("simple_switch_grpc") is None:
        pytest.skip("simple_switch_grpc is not installed")
    with socket.socket() as held:
        # gRPC's servers share a port with whoever allows it. Held by one that does not listen, it
        # is nobody else's.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        target = ["--grpc-server-ssl", "--grpc-server-with-client-auth"]
        target += ["--grpc-server-cert", str(server.cert), "--grpc-server-key", str(server.key)]
        target += ["--grpc-server-cacert", str(server.ca), "--cpu-port", "255"]
        command = bmv2_command(["--no-p4", "--device-id", "1"], address, target)
        with running(command, tmp_path / "log"):
            yield address


def test_p4runtime(switch_with_tls: str, ours: Path, theirs: Path) -> None:
    client = SwitchClient.connect(
        switch_with_tls, 1, 1, timeout=DEADLINE, files=files(ours, "client")
    )
    client.set_pipeline(load_program())
    client.close()
    strangers = {
        "it speaks TLS, and requires a client certificate: give --switch-tls-cert": None,
        "it refuses our certificate": replace(files(theirs, "client"), ca=ours / "ca.pem"),
        "its certificate does not pass": replace(files(ours, "client"), ca=theirs / "ca.pem"),
    }
    for complaint, stranger in strangers.items():
        with pytest.raises(NoSwitchAnswerError) as caught:
            SwitchClient.connect(switch_with_tls, 1, 2, timeout=0.5, files=stranger)
        assert complaint in str(caught.value)


def test_a_switch_with_broken_files(ours: Path, theirs: Path, tmp_path: Path) -> None:
    server = files(ours, "server")
    for key, ca, complaint in (
        (theirs / "server.key", server.ca, "are not a certificate and its key"),
        (server.key, server.key, "is not a CA certificate"),
        (tmp_path / "none", server.ca, f"cannot read {tmp_path}/none"),
    ):
        command = [sys.executable, "-c", "from p4reduce_switch.cli import main; main()"]
        command += ["--grpc-addr", "127.0.0.1:0", f"--tls-cert={server.cert}"]
        done = subprocess.run(
            [*command, f"--tls-key={key}", f"--tls-ca={ca}"],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 1
        assert complaint in done.stderr
        assert "Traceback" not in done.stderr
