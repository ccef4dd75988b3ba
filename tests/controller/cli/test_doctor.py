# SPDX-License-Identifier: Apache-2.0
"""The doctor: finds what is wrong, says what to do, and calls what is in order in order."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from click.testing import Result
from controller_harness import RunningController, ServingProcess, SwitchProcess, cli_here, stopped
from made_certificates import files, make, needs_openssl
from p4reduce import variables
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlError, NoAnswerError
from p4reduce.environment import LAUNCHERS, OWN
from p4reduce.transport import packet
from p4reduce.transport.packet import INTERFACE
from p4reduce_controller.doctor import (
    DoctorTarget,
    clock,
    control_path,
    data_path,
    examine,
    kernel,
    ports,
    software,
    switch,
)
from p4reduce_controller.doctor.finding import Finding, FindingStatus
from p4reduce_controller.doctor.interface import Interface, fill
from p4reduce_controller.fabric import switch_ports
from p4reduce_controller.fabric.compiled_program import load_program
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.fabric.switch_ports import SwitchPorts
from p4reduce_controller.jobs import tokens
from p4reduce_switch.p4runtime import server
from p4reduce_switch.ports.packet import InterfacePlace, PacketPort
from p4reduce_switch.ports.place import PortSpec

Start = Callable[..., RunningController]


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["P4REDUCE_INTERFACE", "P4REDUCE_CONTROLLER", "P4REDUCE_STATE_DIR", *variables.TLS]
    names += [
        name
        for one in (*LAUNCHERS, OWN)
        for name in (one.rank_name, one.world_size_name, one.local_rank_name)
    ]
    for name in names:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def few_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take seconds to say who they are."""
    monkeypatch.setattr(software, "TOOLS", software.TOOLS[3:4])


def run(*arguments: str) -> tuple[Result, dict[tuple[str, str], dict[str, str]]]:
    done = cli_here(*arguments, "--json")
    report = json.loads(done.stdout)
    assert report["ok"] == (done.exit_code == 0)
    for finding in report["findings"]:
        assert finding["found"], finding
        if finding["status"] in ("failure", "warning"):
            assert finding["cure"], finding
    return done, {(each["section"], each["name"]): each for each in report["findings"]}


def test_all_in_order(
    start: Start, mortal_switch: SwitchProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = start(mortal_switch)
    arguments = ["--controller", there.address, "doctor", f"--state-dir={tmp_path}/state"]
    arguments += [f"--interface=unix:{mortal_switch.port_path(2)}"]
    done, found = run(*arguments, f"--switch={mortal_switch.address}")
    assert done.exit_code == 0, done.stdout
    assert "all right" in found["Data plane", "sums"]["found"]
    assert "ports 1-4" in found["Switch", "connection"]["found"]
    assert found["Switch", "P4Runtime"]["status"] == "ok"
    assert found["Switch", "ports"]["found"] == "the switch has 1-4"
    assert found["Controller", "lease"]["found"].startswith("30 s, counted by the controller's")
    assert found["Controller", "operator's token"]["status"] == "ok"
    assert {each["section"] for each in found.values()} == {
        "Software", "Kernel", "Clock", "Controller", "Switch", "Data plane",
    }  # fmt: skip
    # It leaves nothing behind.
    assert [job.state for job in there.call("ListJobs").jobs] == [pb.ENDED]
    assert list((tmp_path / "state").glob(".doctor*")) == []

    monkeypatch.setattr(software, "TOOLS", ())
    people = cli_here(*arguments)
    assert people.exit_code == 0
    assert "  ✓ connection" in people.stdout
    assert people.stdout.splitlines()[-1].startswith("In order")
    assert not any(line.endswith(" ") for line in people.stdout.splitlines())


@pytest.mark.usefixtures("few_tools")
def test_nothing_there(tmp_path: Path) -> None:
    arguments = ["--controller", f"unix:{tmp_path}/none.sock", "doctor", f"--state-dir={tmp_path}"]
    arguments += ["--switch", f"unix:{tmp_path}/no.sock", "--timeout=0.2"]
    done, found = run(*arguments, f"--interface=unix:{tmp_path}/p1")
    assert done.exit_code == 9
    assert "no controller answers" in found["Controller", "answers"]["found"]
    assert "p4reduce-controller serve" in found["Controller", "answers"]["cure"]
    assert "no P4Runtime server answers" in found["Switch", "P4Runtime"]["found"]
    assert found["Switch", "connection"]["status"] == "skipped"
    assert found["Data plane", "sums"]["status"] == "skipped"
    people = cli_here(*arguments)
    assert people.exit_code == 9
    assert "things to repair" in people.stdout.splitlines()[-1]


@pytest.mark.usefixtures("few_tools")
def test_a_port_that_is_not_the_controllers(start: Start, mortal_switch: SwitchProcess) -> None:
    """The wrong cable."""
    there = start(mortal_switch, ports=(1, 2))
    done, found = run(
        "--controller",
        there.address,
        "doctor",
        "--timeout=1",
        f"--interface=unix:{mortal_switch.port_path(4)}",
    )
    assert done.exit_code == 9
    assert "port 4 is not one of the switch's ports in use" in found["Data plane", "sums"]["found"]
    assert "switch status" in found["Data plane", "sums"]["cure"]


def test_ports_that_the_switch_does_not_have(mortal_switch: SwitchProcess) -> None:
    """It came back with fewer than it had: at first `serve` refuses that."""
    said = switched(address=mortal_switch.address)
    said.ports[:] = range(1, 65)
    answers = control_path.Answers(switch=said)
    found = only(switch.examine(None, None, 10.0, answers, near=True), "ports")
    assert found.status is FindingStatus.FAILURE
    assert found.found == "the switch has no port 5-64, only 1-4"
    assert found.cure.startswith("serve --ports 1-4;")


@pytest.mark.usefixtures("few_tools")
def test_a_short_lease(start: Start, mortal_switch: SwitchProcess) -> None:
    there = start(mortal_switch, lease=0.2)
    done, found = run("--controller", there.address, "doctor")
    assert done.exit_code == 0
    assert found["Controller", "lease"]["status"] == "warning"
    assert found["Controller", "lease"]["found"].startswith("0.2 s, counted by")
    assert "serve --lease" in found["Controller", "lease"]["cure"]
    assert (
        "lease           0.2 s"
        in cli_here("--controller", there.address, "switch", "status").stdout
    )


@pytest.mark.usefixtures("few_tools")
def test_a_switch_that_was_stopped(start: Start, mortal_switch: SwitchProcess) -> None:
    """The controller is not at fault: it answers."""
    there = start(mortal_switch)
    arguments = ["--controller", there.address, "doctor", "--timeout=0.5"]
    with stopped(mortal_switch.process.pid):
        done, found = run(*arguments, f"--interface=unix:{mortal_switch.port_path(1)}")
    assert done.exit_code == 9
    assert found["Controller", "answers"]["status"] == "ok"
    assert found["Switch", "connection"]["status"] == "failure"
    assert found["Switch", "connection"]["cure"].startswith("The controller answers, its switch")
    assert ("Switch", "ports") not in found
    assert found["Data plane", "sums"]["found"] == "the switch does not answer its controller"


@pytest.mark.usefixtures("few_tools")
def test_a_controller_that_was_stopped(mortal_switch: SwitchProcess, tmp_path: Path) -> None:
    serving = ServingProcess(mortal_switch, tmp_path)
    try:
        with stopped(serving.process.pid):
            address = serving.client.address
            done, found = run("--controller", address, "doctor", "--timeout=0.5")
    finally:
        serving.end(signal.SIGTERM)
    assert done.exit_code == 9
    assert "did not answer within 0.5 s" in found["Controller", "answers"]["found"]
    assert "kill -CONT" in found["Controller", "answers"]["cure"]


@needs_openssl
@pytest.mark.usefixtures("few_tools")
def test_tls_that_does_not_fit(start: Start, mortal_switch: SwitchProcess, tmp_path: Path) -> None:
    for directory in ("ours", "theirs"):
        make(tmp_path / directory, "server=127.0.0.1", "client")

    def options(directory: str) -> list[str]:
        client = files(tmp_path / directory, "client")
        return [f"--tls-cert={client.cert}", f"--tls-key={client.key}", f"--tls-ca={client.ca}"]

    server = files(tmp_path / "ours", "server")
    secure = start(mortal_switch, listen="127.0.0.1:0", tls=server).address

    def cure(address: str, *options: str) -> str:
        done, found = run("--controller", address, *options, "doctor", "--timeout=1")
        assert done.exit_code == 9
        return found["Controller", "answers"]["cure"]

    assert run("--controller", secure, *options("ours"), "doctor")[0].exit_code == 0
    assert cure(secure).startswith("Give --tls-cert")
    assert cure(secure, *options("theirs")).startswith("Give the CA of the controller's")
    mixed = [*options("theirs")[:2], options("ours")[2]]
    assert cure(secure, *mixed).startswith("Have ours signed by the CA")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        assert "kill -CONT" in cure(address)


@pytest.mark.usefixtures("few_tools")
def test_an_interface_for_each_rank(
    start: Start, mortal_switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = start(mortal_switch)
    pattern = str(mortal_switch.port_path(1)).replace("port1", "port{port}")
    monkeypatch.setenv("P4REDUCE_INTERFACE", f"unix:{pattern}")
    for name, value in (("RANK", "2"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    done, found = run("--controller", there.address, "doctor")
    assert done.exit_code == 0, done.stdout
    assert "port3.sock for rank 2, local rank 0, as the" in found["Data plane", "pattern"]["found"]
    assert "port3.sock and back" in found["Data plane", "sums"]["found"]


@pytest.mark.usefixtures("few_tools")
def test_a_crash_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def crash(_: control_path.Answers) -> Iterator[Finding]:
        raise RuntimeError("boom")

    monkeypatch.setattr(clock, "examine", crash)
    target = DoctorTarget(f"unix:{tmp_path}/no", None, None, None, None, tmp_path, 0.1)
    findings = {finding.section: finding for finding in examine(target)}
    assert findings["Clock"].status is FindingStatus.FAILURE
    assert "boom" in findings["Clock"].found
    assert "Data plane" in findings  # the rest was looked at all the same


# -- One by one ----------------------------------------------------------------------------------


def only(findings: Iterator[Finding], name: str) -> Finding:
    [found] = [finding for finding in findings if finding.name == name]
    return found


def test_missing_tools_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    findings = {finding.name: finding for finding in software.examine()}
    tools = [findings[tool.name] for tool in software.TOOLS]
    assert {finding.status for finding in tools} == {FindingStatus.NOTE}
    assert all(finding.cure for finding in tools)
    assert only(kernel.examine(None), "namespaces, veth").status is FindingStatus.NOTE


def test_a_tool_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "simple_switch_grpc"
    broken.write_text("#!/bin/sh\necho cannot open libfoo.so >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = only(software.examine(), "BMv2")
    assert found.status is FindingStatus.NOTE
    assert "cannot open libfoo.so" in found.found


@pytest.mark.parametrize(
    ("requirement", "wrong"),
    [
        ("numpy>=1.26", ""),
        ("numpy>=1.26.4,<99", ""),
        ("numpy (>=1.26)", ""),
        ("protobuf<99,>=3.20.2", ""),
        ("numpy>=99", "which is not >=99"),
        ("numpy<1", "which is not <1"),
        ("no-such-package>=1", "no-such-package is not installed"),
        ('no-such-package>=1; extra == "demo"', ""),
    ],
)
@pytest.mark.usefixtures("few_tools")
def test_requirements(requirement: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: [requirement])
    found = only(software.examine(), "packages")
    assert wrong in found.found
    assert found.status is (FindingStatus.FAILURE if wrong else FindingStatus.OK)


def test_small_buffers_and_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "WANTED_BUFFER", 1 << 60)
    monkeypatch.setattr(kernel, "WANTED_FILES", 1 << 60)
    findings = {finding.name: finding for finding in kernel.examine(None)}
    assert findings["wmem_max"].status is FindingStatus.WARNING
    assert "sysctl -w net.core.wmem_max" in findings["wmem_max"].cure
    assert findings["open files"].status is FindingStatus.WARNING


def test_packet_sockets_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(kernel.socket, "socket", refuse)
    assert only(kernel.examine(None), kernel.PACKET_SOCKET).status is FindingStatus.NOTE
    needed = only(kernel.examine("eth0"), kernel.PACKET_SOCKET)
    assert needed.status is FindingStatus.FAILURE
    assert "CAP_NET_RAW" in needed.cure


def test_a_kernel_without_runs_of_datagrams(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(kernel.examine("udp:127.0.0.1:7001"), kernel.UDP_RUNS).status is FindingStatus.OK
    monkeypatch.setattr(kernel, "UDP_SEGMENT", 250)  # no kernel knows that
    needed = only(kernel.examine("udp:127.0.0.1:7001"), kernel.UDP_RUNS)
    assert needed.status is FindingStatus.WARNING
    assert "Invalid argument" in needed.found
    assert only(kernel.examine("eth0"), kernel.UDP_RUNS).status is FindingStatus.NOTE


def test_clocks() -> None:
    good = clock.Reading(late=0.001, drift=0.0001, slept=0.0, date=1.8e9)

    def wrong(**changes: float) -> dict[str, FindingStatus]:
        findings = clock.judge(replace(good, **changes))
        return {each.name: each.status for each in findings if each.status is not FindingStatus.OK}

    assert wrong() == {}
    assert wrong(late=0.2) == {"timers": FindingStatus.WARNING}
    assert wrong(drift=-0.02) == {"drift": FindingStatus.WARNING}
    assert wrong(slept=3600.0) == {"sleep": FindingStatus.WARNING}
    assert wrong(date=0.0) == {"date": FindingStatus.FAILURE}
    assert wrong(date=2.3e9) == {"date": FindingStatus.FAILURE}  # 2042


def of_state(directory: Path) -> list[Finding]:
    """What is found about a state directory."""
    nowhere = f"unix:{directory}/none.sock"
    findings = control_path.examine(nowhere, None, directory, 0.1, control_path.Answers())
    return [each for each in findings if each.name in ("state directory", "operator's token")]


def test_a_state_directory_open_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    tokens.operator_token(tmp_path)
    (tmp_path / tokens.OPERATOR_FILE).chmod(0o644)
    findings = of_state(tmp_path)
    wrong = [finding for finding in findings if finding.status is not FindingStatus.OK]
    assert [finding.status for finding in wrong] == [FindingStatus.FAILURE, FindingStatus.FAILURE]
    assert wrong[0].cure == f"chmod 700 {tmp_path}"
    assert wrong[1].cure.startswith(f"rm {tmp_path}/operator.token")


def test_a_state_directory_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    [found] = of_state(tmp_path)
    assert found.status is FindingStatus.FAILURE
    assert "No space left on device" in found.found


def test_what_to_do_about_a_controller_that_does_not_answer(tmp_path: Path) -> None:
    status = grpc.StatusCode
    nowhere = f"unix:{tmp_path}/none.sock"

    def cure(text: str, code: grpc.StatusCode = status.UNAVAILABLE) -> str:
        return control_path.cure(nowhere, NoAnswerError(code, text))

    assert cure("no controller answers (Connection refused)").startswith("Start one")
    assert "unset P4REDUCE_TLS_" in cure("(it does not speak TLS (WRONG_VERSION_NUMBER))")
    assert "another user's" in cure("no controller answers (Permission denied)")
    assert cure("no answer", status.DEADLINE_EXCEEDED).startswith("Nothing came back")
    other = ControlError(status.UNIMPLEMENTED, "the controller failed: UNIMPLEMENTED")
    assert "this version" in control_path.cure(nowhere, other)


def test_leases() -> None:
    assert control_path.judge_lease(10.0, 0.002, 0.001).status is FindingStatus.OK
    assert control_path.judge_lease(0.5, 0.002, 0.001).status is FindingStatus.WARNING
    assert (
        control_path.judge_lease(10.0, 0.5, 0.1).status is FindingStatus.WARNING
    )  # for those answers
    assert (
        control_path.judge_lease(10.0, 0.002, 0.6).status is FindingStatus.WARNING
    )  # for those timers
    assert control_path.judge_lease(0.0, 0.002, 0.001).status is FindingStatus.SKIPPED
    assert "dates need not agree" in control_path.judge_lease(10.0, 0.002, 0.001).found


def test_ports() -> None:
    def compared(there: set[int], dark: set[int] | None = None) -> Finding:
        return ports.compare("Switch", [1, 2], SwitchPorts(frozenset(there), frozenset(dark or ())))

    assert compared({1, 2}).status is FindingStatus.OK
    assert "3-4, too" in compared({1, 2, 3, 4}).found
    assert compared({1}).status is FindingStatus.FAILURE
    assert "only none" in compared(set()).found
    assert compared({1, 2, 3}, dark={3}).status is FindingStatus.OK  # nobody uses it
    assert compared({1, 2}, dark={2}).found == "no carrier on port 2"
    unknown = ports.compare("Switch", [1, 2], None, "it says nothing")
    assert unknown.status is FindingStatus.NOTE
    assert "whether the switch has 1-2 cannot be checked: it says nothing" in unknown.found


def test_ports_that_the_embedded_switch_tells() -> None:
    assert server.PORTS_METADATA == switch_ports.PORTS_METADATA
    assert server.NO_CARRIER_METADATA == switch_ports.NO_CARRIER_METADATA
    assert switch_ports.ports_in([("date", "today")]) is None
    said = [(switch_ports.PORTS_METADATA, "1,2,7"), (switch_ports.NO_CARRIER_METADATA, "")]
    assert switch_ports.ports_in(said) == SwitchPorts(frozenset({1, 2, 7}))


def test_ports_on_the_command_line_of_bmv2(tmp_path: Path) -> None:
    for number, command in enumerate(
        (
            "simple_switch_grpc -i 9@lo -- --grpc-server-addr 127.0.0.1:50001",
            "/usr/bin/simple_switch_grpc --no-p4 -i 1@lo --interface=2@nosuch0 -- "
            "--grpc-server-addr 0.0.0.0:50002 --cpu-port 510",
            "vi simple_switch_grpc --grpc-server-addr 127.0.0.1:50002",
            "simple_switch_grpc -i 5@lo -- --grpc-server-addr unix:/run/a.sock",
            "simple_switch_grpc -i 6@lo -- --grpc-server-addr unix:/run/b.sock",
        )
    ):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_text("\0".join(command.split()) + "\0")
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "cmdline").write_text("")  # of the kernel's own
    assert switch_ports.of_bmv2("127.0.0.1:50002", tmp_path) == SwitchPorts(frozenset({1, 2}))
    assert switch_ports.of_bmv2("127.0.0.1:50003", tmp_path) is None
    assert switch_ports.of_bmv2("unix:/run/b.sock", tmp_path) == SwitchPorts(frozenset({6}))
    assert switch_ports.of_bmv2("unix:/run/c.sock", tmp_path) is None


def test_a_switch_whose_ports_are_not_known() -> None:
    answers = control_path.Answers(switch=switched(address="127.0.0.1:1"))
    found = only(switch.examine(None, None, 0.1, answers, near=False), "ports")
    assert found.status is FindingStatus.NOTE
    assert "is an address of the controller's machine" in found.found
    found = only(switch.examine(None, None, 0.1, answers, near=True), "ports")
    assert "no P4Runtime server answers at 127.0.0.1:1" in found.found


@pytest.mark.root
def test_a_port_without_a_carrier(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to make an interface")
    # An end whose other end is down has none.
    subprocess.run(["ip", "link", "add", "p4rdoc1", "type", "veth"], check=True)
    try:
        subprocess.run(["ip", "link", "set", "p4rdoc1", "up"], check=True)
        process = tmp_path / "1"
        process.mkdir()
        command = "simple_switch_grpc -i 1@p4rdoc1 -i 2@lo -- --grpc-server-addr 127.0.0.1:50001"
        (process / "cmdline").write_text("\0".join(command.split()) + "\0")
        found = switch_ports.of_bmv2("127.0.0.1:50001", tmp_path)
        assert found == SwitchPorts(frozenset({1, 2}), dark=frozenset({1}))
        specs = [PortSpec(1, InterfacePlace("p4rdoc1")), PortSpec(2, InterfacePlace("lo"))]
        opened = [PacketPort(spec) for spec in specs]
        assert [port.has_carrier for port in opened] == [False, True]
        for port in opened:
            port.close()
        assert not opened[1].has_carrier
    finally:
        subprocess.run(["ip", "link", "del", "p4rdoc1"], check=True)


SWITCH = pb.Switch(
    address="unix:/s",
    connected=True,
    primary=True,
    program=f"p4reduce {load_program().digest[:12]}",
    slots=1024,
    slots_free=1024,
    ports=[1, 2],
)


def switched(**changes: Any) -> pb.Switch:
    changed = pb.Switch()
    changed.CopyFrom(SWITCH)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


@pytest.mark.parametrize(
    ("changes", "name", "status", "cure"),
    [
        (
            {"connected": False, "reason": "hung up"},
            "connection",
            FindingStatus.FAILURE,
            "Start the switch",
        ),
        ({"primary": False}, "connection", FindingStatus.FAILURE, "--election-id"),
        ({"program": "p4reduce 123"}, "program", FindingStatus.FAILURE, "different versions"),
        ({"slots_free": 0}, "slots", FindingStatus.WARNING, "job list"),
        ({"hellos_refused": 7}, "HELLOs refused", FindingStatus.WARNING, "watch"),
    ],
)
def test_switches(changes: dict[str, Any], name: str, status: FindingStatus, cure: str) -> None:
    answers = control_path.Answers(switch=switched(**changes), counts={"malformed": 0})
    found = only(switch.examine(None, None, 0.1, answers, near=True), name)
    assert found.status is status
    assert cure in found.cure


def test_counters() -> None:
    counts = {"hello-limited": 3, "malformed": 0, "stale": 9}
    answers = control_path.Answers(switch=switched(), counts=counts)
    findings = list(switch.examine(None, None, 0.1, answers, near=True))
    assert [each.name for each in findings if each.status is FindingStatus.WARNING] == [
        "hello-limited"
    ]
    labels = {outcome.label for outcome in FrameOutcome}
    assert labels > switch.SYMPTOMS.keys()


PATTERNS = {
    "unset": ({}, "eth0", "rank 0, local rank 0", True),
    "torchrun": (
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"},
        "eth1",
        "rank 5, local rank 1",
        False,
    ),
}


@pytest.mark.parametrize("case", PATTERNS)
def test_patterns(case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment, name, who, guessed = PATTERNS[case]
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    filled = fill("eth{local_rank}")
    assert (filled.name, filled.who, filled.guessed) == (name, who, guessed)
    nowhere = f"unix:{tmp_path}/none.sock"
    findings = data_path.examine(nowhere, None, filled, 0.1, control_path.Answers())
    finding = only(findings, "pattern")
    assert f"eth{{local_rank}} is {name} for {who}" in finding.found
    assert finding.status is (FindingStatus.NOTE if guessed else FindingStatus.OK)
    assert fill("eth0") == Interface("eth0", "eth0")
    assert fill(None) == Interface(None)


def test_a_pattern_that_cannot_be_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = fill("eth{card}")
    assert unknown.name is None
    found = only(data_path.examine("", None, unknown, 0.1, control_path.Answers()), "interface")
    assert found.status is FindingStatus.FAILURE
    assert "{local_rank} and {port} are filled in" in found.found
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert "RANK is not set" in fill("eth{rank}").error


def test_a_udp_port(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key = tmp_path / "key"
    key.write_text("0123456789abcdef")
    key.chmod(0o600)
    address = f"unix:{tmp_path}/grpc.sock"
    command = [sys.executable, "-m", "p4reduce_switch", "--grpc-addr", address]
    command += ["--port", f"1=udp:127.0.0.1:{port}", "--udp-key-file", str(key)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
            there = start(SimpleNamespace(address=address), ports=(1,))
            at = ["--controller", there.address, "doctor", "--interface", f"udp:127.0.0.1:{port}"]
            monkeypatch.setenv("P4REDUCE_UDP_KEY_FILE", str(key))
            done, found = run(*at)
            assert done.exit_code == 0, done.stdout
            said = found["Data plane", "UDP port"]["found"]
            assert said == f"udp:127.0.0.1:{port} is UDP port {port} of 127.0.0.1, with a key"
            assert "and back" in found["Data plane", "sums"]["found"]
            monkeypatch.delenv("P4REDUCE_UDP_KEY_FILE")
            done, found = run(*at)
            assert done.exit_code == 9
            assert found["Data plane", "UDP port"]["found"].endswith("without a key")
            assert "key" in found["Data plane", "sums"]["found"]
        finally:
            process.terminate()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("udp:nowhere", "interface 'udp:nowhere' is not of the form udp:HOST:PORT"),
        ("udp:127.0.0.1:99999", "UDP port 99999 is not 1 to 65535"),
        ("udp:no.such.host.invalid:7001", "udp:no.such.host.invalid:7001: "),
    ],
)
def test_a_udp_port_that_is_none(name: str, told: str) -> None:
    [found] = data_path.examine("unix:/c", None, Interface(name, name), 0.1, control_path.Answers())
    assert (found.name, found.status) == ("UDP port", FindingStatus.FAILURE)
    assert found.found.startswith(told) or told in found.found


def test_a_udp_port_takes_no_packet_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> socket.socket:
        raise PermissionError

    monkeypatch.setattr(kernel.socket, "socket", refuse)
    status = {
        name: only(kernel.examine(name), kernel.PACKET_SOCKET).status
        for name in ("eth0", "udp:127.0.0.1:7001", "unix:/p")
    }
    assert status == {
        "eth0": FindingStatus.FAILURE,
        "udp:127.0.0.1:7001": FindingStatus.NOTE,
        "unix:/p": FindingStatus.NOTE,
    }


def test_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    [there], [none] = INTERFACE.look("lo"), INTERFACE.look("nosuch0")
    assert not there.cure
    assert none.found == "there is no interface 'nosuch0'"
    by_offload = Interface("lo,offload", "lo,offload")
    found = list(data_path.examine("unix:/c", None, by_offload, 0.1, control_path.Answers()))
    assert [each.status for each in found] == [FindingStatus.OK, FindingStatus.SKIPPED]
    monkeypatch.setattr(packet, "LEAST_MTU", 1 << 20)
    [small] = INTERFACE.look("lo")
    assert "ip link set lo mtu" in small.cure


@pytest.mark.root
def test_an_interface_that_is_down() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to make an interface")
    subprocess.run(["ip", "link", "add", "p4rdown0", "type", "veth"], check=True)
    try:
        [down] = INTERFACE.look("p4rdown0")
        assert "ip link set p4rdown0 up" in down.cure
    finally:
        subprocess.run(["ip", "link", "del", "p4rdown0"], check=True)


def test_findings_in_json() -> None:
    finding = Finding("a", "b", FindingStatus.NOTE, "c", "d")
    assert replace(finding, cure="").plain() == {
        "section": "a", "name": "b", "status": "note", "found": "c", "cure": "",
    }  # fmt: skip
