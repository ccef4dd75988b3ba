# SPDX-License-Identifier: Apache-2.0
"""The doctor: finds what is wrong, says what to do, and calls what is in order in order."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from controller_harness import RunningController, SwitchProcess, cli_here
from p4reduce.control import control_pb2 as pb
from p4reduce_controller import tokens
from p4reduce_controller.doctor import Patient, clock, controller, examine, kernel, software, switch
from p4reduce_controller.doctor import dataplane as sums
from p4reduce_controller.doctor.finding import Finding, Status
from p4reduce_controller.outcome import Outcome
from p4reduce_controller.program import load_program

Start = Callable[..., RunningController]


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("P4REDUCE_INTERFACE", "P4REDUCE_CONTROLLER", "P4REDUCE_STATE_DIR"):
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
    assert "things to put right" in people.stdout.splitlines()[-1]


@pytest.mark.usefixtures("few_tools")
def test_a_port_that_is_not_the_controllers(start: Start, mortal_switch: SwitchProcess) -> None:
    """The wrong cable."""
    there = start(mortal_switch, ports=(1, 2))
    done, found = run(
        *("--controller", there.address, "doctor", "--timeout=1"),
        f"--interface=unix:{mortal_switch.port_path(4)}",
    )
    assert done.exit_code == 9
    assert "port 4 is not one of the switch's ports in use" in found["Data plane", "sums"]["found"]
    assert "switch status" in found["Data plane", "sums"]["cure"]


@pytest.mark.usefixtures("few_tools")
def test_a_crash_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def crash() -> Iterator[Finding]:
        raise RuntimeError("boom")

    monkeypatch.setattr(clock, "examine", crash)
    patient = Patient(f"unix:{tmp_path}/no", None, None, None, None, tmp_path, 0.1)
    findings = {finding.section: finding for finding in examine(patient)}
    assert findings["Clock"].status is Status.FAILURE
    assert "boom" in findings["Clock"].found
    assert "Data plane" in findings  # the rest was looked at all the same


# -- One by one ----------------------------------------------------------------------------------


def only(findings: Iterator[Finding], name: str) -> Finding:
    [found] = [finding for finding in findings if finding.name == name]
    return found


def test_missing_tools_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    findings = [software._tool(tool) for tool in software.TOOLS]
    assert {finding.status for finding in findings} == {Status.NOTE}
    assert all(finding.cure for finding in findings)
    assert kernel._namespaces().status is Status.NOTE


def test_a_tool_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "simple_switch_grpc"
    broken.write_text("#!/bin/sh\necho cannot open libfoo.so >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = software._tool(software.TOOLS[0])
    assert found.status is Status.NOTE
    assert "cannot open libfoo.so" in found.found


@pytest.mark.parametrize(
    ("requirement", "wrong"),
    [
        ("numpy>=1.26", ""),
        ("numpy (>=1.26)", ""),
        ("protobuf<3.21,>=3.20.2", ""),
        ("numpy>=99", "which is not >=99"),
        ("numpy<1", "which is not <1"),
        ("no-such-package>=1", "no-such-package is not installed"),
        ('no-such-package>=1; extra == "demo"', ""),
    ],
)
def test_requirements(requirement: str, wrong: str) -> None:
    found = software._unmet(requirement)
    assert wrong in found
    assert bool(wrong) == bool(found)


def test_small_buffers_and_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "WANTED_BUFFER", 1 << 60)
    monkeypatch.setattr(kernel, "WANTED_FILES", 1 << 60)
    assert kernel._buffer("wmem_max").status is Status.WARNING
    assert "sysctl -w net.core.wmem_max" in kernel._buffer("wmem_max").cure
    assert kernel._open_files().status is Status.WARNING


def test_packet_sockets_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(kernel.socket, "socket", refuse)
    assert kernel._packet_sockets(needed=False).status is Status.NOTE
    needed = kernel._packet_sockets(needed=True)
    assert needed.status is Status.FAILURE
    assert "CAP_NET_RAW" in needed.cure


def test_clocks() -> None:
    assert clock._punctuality(0.2).status is Status.WARNING
    assert clock._drift(-0.02).status is Status.WARNING
    assert clock._suspended(3600.0).status is Status.WARNING
    assert clock._date(0.0).status is Status.FAILURE
    assert clock._date(2.3e9).status is Status.FAILURE  # 2042
    assert clock._drift(0.0001).status is clock._date(1.8e9).status is Status.OK


def test_a_state_directory_open_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    tokens.operator_token(tmp_path)
    (tmp_path / tokens.OPERATOR_FILE).chmod(0o644)
    findings = list(controller._state(tmp_path))
    assert [finding.status for finding in findings if finding.status is not Status.OK] == [
        Status.FAILURE,
        Status.FAILURE,
    ]
    assert findings[0].cure == f"chmod 700 {tmp_path}"
    assert findings[-1].cure.startswith(f"rm {tmp_path}/operator.token")


def test_a_state_directory_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    found = only(controller._state(tmp_path), "state directory")
    assert found.status is Status.FAILURE
    assert "No space left on device" in found.found


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
            Status.FAILURE,
            "Start the switch",
        ),
        ({"primary": False}, "connection", Status.FAILURE, "--election-id"),
        ({"program": "p4reduce 123"}, "program", Status.FAILURE, "different versions"),
        ({"slots_free": 0}, "slots", Status.WARNING, "job list"),
        ({"hellos_refused": 7}, "HELLOs refused", Status.WARNING, "watch"),
    ],
)
def test_switches(changes: dict[str, Any], name: str, status: Status, cure: str) -> None:
    answers = controller.Answers(switched(**changes), {"malformed": 0})
    found = only(switch.examine(None, None, 0.1, answers), name)
    assert found.status is status
    assert cure in found.cure


def test_counters() -> None:
    answers = controller.Answers(switched(), {"hello-limited": 3, "malformed": 0, "stale": 9})
    findings = list(switch.examine(None, None, 0.1, answers))
    assert [each.name for each in findings if each.status is Status.WARNING] == ["hello-limited"]
    labels = {outcome.label for outcome in Outcome}
    assert labels > switch.SYMPTOMS.keys()


def test_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sums._link("lo").status is Status.OK
    assert sums._link("nosuch0").status is Status.FAILURE
    monkeypatch.setattr(sums, "_LEAST_MTU", 1 << 20)
    assert "ip link set lo mtu" in sums._link("lo").cure


@pytest.mark.root
def test_an_interface_that_is_down() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to make an interface")
    subprocess.run(["ip", "link", "add", "p4rdown0", "type", "veth"], check=True)
    try:
        assert "ip link set p4rdown0 up" in sums._link("p4rdown0").cure
    finally:
        subprocess.run(["ip", "link", "del", "p4rdown0"], check=True)


def test_findings_in_json() -> None:
    finding = Finding("a", "b", Status.NOTE, "c", "d")
    assert replace(finding, cure="").plain() == {
        "section": "a", "name": "b", "status": "note", "found": "c", "cure": "",
    }  # fmt: skip
