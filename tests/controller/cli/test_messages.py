# SPDX-License-Identifier: Apache-2.0
"""What operators are told where something that they gave is wrong."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from controller_harness import (
    DEADLINE,
    PORTS,
    RunningController,
    SwitchProcess,
    cli,
    cli_process,
    eventually,
)
from p4reduce.control.client import ControlClient, ControlError
from p4reduce_common.grpc_binding import why_not_bound
from p4reduce_controller.cli.command_line import cli as command
from p4reduce_controller.jobs import tokens
from p4reduce_controller.terminal.exit_codes import Exit


def serve(switch: str, directory: Path, *more: str) -> Any:
    return cli(
        "serve",
        "--switch",
        switch,
        "--listen",
        f"unix:{directory}/c/c.sock",
        "--state-dir",
        str(directory / "state"),
        "--connect-timeout",
        "5",
        *(more or ("--ports", "1-2")),
    )


def test_ports_that_the_switch_does_not_have(mortal_switch: SwitchProcess, tmp_path: Path) -> None:
    done = serve(mortal_switch.address, tmp_path, "--ports", "1-20")
    assert done.returncode == Exit.REFUSED
    has, lacks = f"1-{max(PORTS)}", f"{max(PORTS) + 1}-20"
    assert f"has no ports {lacks}, which --ports or the topology names; it has {has}" in done.stderr


def test_a_controllers_address_as_the_switchs(
    controller: RunningController, tmp_path: Path
) -> None:
    done = serve(controller.address, tmp_path)
    assert done.returncode == Exit.REFUSED
    assert f"the server at {controller.address} is not a switch (P4Runtime)" in done.stderr


@pytest.mark.parametrize("arguments", [("job", "list"), ("watch",), ("switch", "status")])
def test_a_switchs_address_as_the_controllers(
    arguments: tuple[str, ...], switch: SwitchProcess
) -> None:
    done = cli("--controller", switch.address, *arguments)
    assert done.returncode == Exit.REFUSED
    assert f"the server at {switch.address} is not a p4reduce controller" in done.stderr
    assert "--listen" in done.stderr


def test_deleting_a_job_from_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's token is not read for a controller that is elsewhere."""

    def refuse(*_: Any) -> None:
        raise ControlError(
            grpc.StatusCode.PERMISSION_DENIED, "requires a token, and none was given"
        )

    monkeypatch.setattr(ControlClient, "call", refuse)
    done = CliRunner().invoke(command, ["--controller", "192.0.2.1:7070", "job", "delete", "x"])
    assert done.exit_code == Exit.REFUSED
    assert "none was given. The operator's token, which deletes any job, is in" in done.output
    assert "--token or P4REDUCE_TOKEN" in done.output
    done = CliRunner().invoke(command, ["--controller", "127.0.0.1:7070", "job", "delete", "x"])
    assert done.exit_code == Exit.REFUSED
    assert "operator.token" not in done.output


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


def test_what_the_system_has_against_an_address_is_told(taken: str, tmp_path: Path) -> None:
    told = RuntimeError("set GRPC_VERBOSITY=debug")
    assert why_not_bound(taken, told) == os.strerror(errno.EADDRINUSE)
    assert why_not_bound("192.0.2.1:0", told) == os.strerror(errno.EADDRNOTAVAIL)
    assert why_not_bound("[::1]:0", told) in (str(told), os.strerror(errno.EADDRNOTAVAIL))
    assert why_not_bound(f"unix:{tmp_path}/no/s", told) == os.strerror(errno.ENOENT)
    assert why_not_bound(f"unix:{tmp_path}/s", told) == str(told)
    assert not (tmp_path / "s").exists()


def test_a_full_disk_is_told_with_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The job table's file and that of incarnations are in the tests of storage."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    opened = os.open

    def open_full(path: Any, flags: int, mode: int = 0o777) -> int:
        os.close(opened(path, flags, mode))
        return opened(full, os.O_WRONLY)

    monkeypatch.setattr(os, "open", open_full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/operator.token'"):
        tokens.operator_token(tmp_path)


def test_a_fifo_as_the_operators_token_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / tokens.OPERATOR_FILE, 0o600)
    assert tokens.read_operator_token(tmp_path) is None


@pytest.mark.parametrize("kind", ["a FIFO", "a directory", "a device"])
@pytest.mark.parametrize("option", ["--topology", "--http-token-file", "--tls-cert", "--tls-key"])
def test_what_is_no_file_is_refused(option: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "named"
    if kind == "a FIFO":
        os.mkfifo(path, 0o600)
    elif kind == "a directory":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    more = {
        "--topology": [],
        "--http-token-file": ["--switch", "unix:/nowhere", "--ports", "1", "--http", "127.0.0.1:0"],
        "--tls-cert": ["--switch", "x:1", "--ports", "1", "--tls-key", __file__],
        "--tls-key": ["--switch", "x:1", "--ports", "1", "--tls-cert", __file__],
    }[option]
    if option.startswith("--tls"):
        more += ["--tls-ca", __file__]
    at = ["--listen", "127.0.0.1:0", "--state-dir", str(tmp_path / "state")]
    done = CliRunner().invoke(command, ["serve", option, str(path), *more, *at])
    assert done.exit_code in (1, 2, Exit.NO_LISTEN), done.output
    assert path.name in done.output
    assert kind.split()[1] in done.output


@pytest.mark.parametrize("option", ["--switch=a:1", "--ports=1", "--device-id=1"])
def test_options_of_switches_that_a_topology_describes(option: str, tmp_path: Path) -> None:
    file = tmp_path / "net.toml"
    file.touch()
    done = CliRunner().invoke(command, ["serve", "--topology", str(file), option])
    assert done.exit_code == 2
    assert "--topology describes the switches: leave out" in done.output
    assert option.split("=")[0] in done.output.split("leave out")[1]


def test_a_signal_ends_a_controller_that_waits_for_its_switch(tmp_path: Path) -> None:
    state = tmp_path / "state"
    arguments = ["serve", "--switch", f"unix:{tmp_path}/none", "--ports", "1-2"]
    arguments += ["--listen", f"unix:{tmp_path}/c/c.sock", "--state-dir", str(state)]
    arguments += ["--connect-timeout", "600"]
    with cli_process(*arguments, log=tmp_path / "log") as serving:
        eventually((tmp_path / "c").exists, "it has begun")
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(timeout=DEADLINE) == -signal.SIGTERM
    assert "Traceback" not in (tmp_path / "log").read_text()
