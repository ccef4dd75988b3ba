# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller` as a process: what it prints, and its exit codes."""

from __future__ import annotations

import io
import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from controller_harness import (
    DEADLINE,
    RunningController,
    ServingProcess,
    SwitchProcess,
    cli,
    cli_json,
    cli_process,
    eventually,
)
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient
from p4reduce_controller.cli.command_line import cli as command
from p4reduce_controller.cli.watch import WatchSnapshot, is_there, show
from p4reduce_controller.terminal import render
from p4reduce_controller.terminal.exit_codes import Exit
from p4reduce_controller.terminal.json_output import plain
from rich.console import Console

# -- Without a controller -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["job", "list"], ["job", "show", "x"], ["switch", "status"], ["watch"], ["switch", "tables"]],
)
def test_no_controller(tmp_path: Path, arguments: list[str]) -> None:
    done = CliRunner().invoke(command, ["--controller", f"unix:{tmp_path}/none", *arguments])
    assert done.exit_code == Exit.UNREACHABLE == 3
    assert f"no controller answers at unix:{tmp_path}/none" in done.output


SERVE = ("serve", "--switch", "x:1", "--ports", "1")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["job", "create", "x"], "--ranks"),
        (["job", "create", "x", "-n", "two"], "two"),
        (["job", "create", "x", "-n", "-2"], "--ranks -2 is negative"),
        (["serve", "--ports", "1"], "--switch"),
        (["serve", "--switch", "x:1", "--ports", "4-1"], "'4-1' is not a range of ports"),
        (["serve", "--switch", "x:1", "--ports", "1,x"], "'x' is not a port"),
        (["serve", "--switch", "x:1", "--ports", "1-"], "'1-' is not a port"),
        (["serve", "--switch", "x:1", "--ports", "500-511"], "from 0 to 510"),
        (["serve", "--switch", "x:1", "--ports", "250-260"], "255 is the controller's own"),
        (["serve", "--switch", "x:1", "--ports", "1", "--switch-ip", "10.0.0"], "'10.0.0' is no"),
        (["serve", "--switch", "x:1", "--ports", "1", "--switch-ip", "224.0.0.1"], "a switch can"),
        (["serve", "--switch", "x:1", "--ports", "1", "--switch-mac", "1:2"], "'1:2' is not a MAC"),
        (
            ["serve", "--switch", "x:1", "--ports", "1", "--switch-mac", "01:00:00:00:00:01"],
            "a switch can have",
        ),
        ([*SERVE, "--station", "1:2@1"], "'1:2' is not a MAC"),
        ([*SERVE, "--station", "02:00:00:00:00:01"], "names no port, like 02:00:00:00:00:01@5"),
        ([*SERVE, "--station", "ff:ff:ff:ff:ff:ff@1"], "not an address that a host can have"),
        ([*SERVE, "--station", "02:00:00:00:00:01@2"], "port 2 is not in --ports"),
        ([*SERVE, "--station", "02:70:34:72:65:64@1"], "that is the switch's own address"),
        (
            [*SERVE, "--station", "02:00:00:00:00:01@1", "--station", "02:00:00:00:00:01@2"],
            "is given for port 1 and for port 2: a station stays at one port",
        ),
        (["serve", "--switch", "x:1", "--ports", "1", "--lease", "0"], "0"),
        (["serve", "--switch", "foo", "--ports", "1"], "'foo' is not of the form HOST:PORT or"),
        (["serve", "--switch", "a:x", "--ports", "1"], "port 'x' of 'a:x' is not within 0 to"),
        (["serve", "--switch", "a b:1", "--ports", "1"], "neither a host's name nor"),
        (["serve", "--switch", "x:1", "--ports", "1", "--listen", "foo"], "'foo' is not of the"),
        (["--controller", "foo", "job", "list"], "Invalid value for '--controller': 'foo' is not"),
        (["--controller", "unix:", "job", "list"], "no path after 'unix:'"),
        (["doctor", "--switch", "foo"], "'foo' is not of the form"),
        (
            ["job", "create", "x", "-n", "1", "--slots", "2000"],
            "2000 is not in the range 1<=x<=1024",
        ),
        (["job", "create", "x", "-n", "1", "--slots", "0"], "the range 1<=x<=1024"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_arguments(arguments: list[str], complaint: str) -> None:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == Exit.USAGE == 2
    assert complaint in done.output


def test_a_controller_in_the_environment_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_CONTROLLER", "foo")
    done = CliRunner().invoke(command, ["job", "list"])
    assert done.exit_code == Exit.USAGE
    assert "P4REDUCE_CONTROLLER: 'foo' is not of the form HOST:PORT or unix:PATH" in done.output


def test_help_documents_every_exit_code() -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    for code in Exit:
        assert f"{code.value}  {code.meaning}" in text


@pytest.mark.parametrize("slots", ["0", "1025", "-1", "many", "Auto", ""])
def test_a_default_number_of_slots_that_is_none(slots: str) -> None:
    done = CliRunner().invoke(command, ["serve", "--default-slots", slots])
    assert done.exit_code == Exit.USAGE
    assert f"{slots!r} is neither auto nor a number from 1 to 1,024" in done.output


def test_no_switch(tmp_path: Path) -> None:
    done = cli(
        "serve", "--switch", f"unix:{tmp_path}/none", "--ports", "1", "--connect-timeout", "0.2",
        "--listen", f"unix:{tmp_path}/c.sock",
    )  # fmt: skip
    assert done.returncode == Exit.NO_SWITCH == 7
    assert "no P4Runtime server answers" in done.stderr
    assert done.stdout == ""


def test_a_server_that_never_answers(tmp_path: Path) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        done = cli(
            "serve", "--switch", address, "--ports", "1", "--connect-timeout", "0.5",
            "--listen", f"unix:{tmp_path}/c.sock",
        )  # fmt: skip
    assert done.returncode == Exit.NO_SWITCH
    assert address in done.stderr


def test_cannot_listen(tmp_path: Path) -> None:
    done = cli(
        "serve", "--switch", f"unix:{tmp_path}/none", "--ports", "1", "--listen", "0.0.0.0:1"
    )
    assert done.returncode == Exit.NO_LISTEN == 8
    assert "TLS" in done.stderr


# -- With one -----------------------------------------------------------------------------------


def test_serve_from_start_to_end(switch: SwitchProcess, tmp_path: Path) -> None:
    listen, ready = f"unix:{tmp_path}/run/c.sock", tmp_path / "ready"
    log = tmp_path / "log"
    serve = ["--controller", listen, "serve", "--switch", switch.address, "--ports", "1-4"]
    serve += ["--state-dir", str(tmp_path / "state")]
    with cli_process(*serve, "--ready-file", str(ready), log=log) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == f"ready at {listen}: switch {switch.address} (device 1), ports 1-4\n"
        eventually(ready.exists, "the ready file is there")
        assert json.loads(ready.read_text()) == {"pid": process.pid, "address": listen}
        assert cli_json("--controller", listen, "job", "create", "a", "-n", "2")["name"] == "a"

        second = cli(*serve[2:], "--listen", f"unix:{tmp_path}/second.sock")
        assert second.returncode == Exit.BACKUP == 4
        assert f"another controller (pid {process.pid}) has the jobs of" in second.stderr
        assert cli(*serve).returncode == Exit.NO_LISTEN  # the same address

        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=DEADLINE) == 0
        assert process.stdout.read() == ""
    assert not ready.exists()
    assert not (tmp_path / "run" / "c.sock").exists()
    text = log.read_text()
    assert "job-ended 'a'" in text
    assert "CRITICAL" not in text
    assert "Traceback" not in text


def test_interrupt_is_clean(switch: SwitchProcess, tmp_path: Path) -> None:
    arguments = ["serve", "--switch", switch.address, "--ports", "1-4", "--listen", "127.0.0.1:0"]
    with cli_process(
        *arguments, "--state-dir", str(tmp_path / "state"), log=tmp_path / "log"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready at 127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=DEADLINE) == 0


def test_jobs(controller: RunningController, switch: SwitchProcess) -> None:
    at = ["--controller", controller.address]
    made = cli_json(*at, "job", "create", "train", "--ranks", "3", "--slots", "10")
    assert made["state"] == "forming"
    assert (made["slot_base"], made["slot_count"], made["world_size"]) == (0, 10, 3)
    again = cli(*at, "job", "create", "train", "-n", "3")
    assert again.returncode == Exit.REFUSED == 1
    assert again.stderr == "Error: there is a job 'train' already\n"
    assert [job["name"] for job in cli_json(*at, "job", "list")["jobs"]] == ["train"]
    controller.running(switch, 3)
    shown = cli_json(*at, "job", "show", "train")
    assert shown["job"]["state"] == "running"
    assert [member["state"] for member in shown["job"]["members"]] == ["attached"] * 3
    assert [rank["frames_up"] for rank in shown["ranks"]] == [0, 0, 0]
    assert cli_json(*at, "job", "delete", "train")["reason"] == "deleted by an operator"
    assert cli_json(*at, "job", "list") == {"jobs": []}
    assert len(cli_json(*at, "job", "list", "--all")["jobs"]) == 1
    for arguments in (["job", "show", "nobody"], ["job", "delete", "nobody"]):
        missing = cli(*at, *arguments)
        assert missing.returncode == Exit.NOT_FOUND == 5
        assert "there is no job 'nobody'" in missing.stderr


def test_the_switch(controller: RunningController, switch: SwitchProcess) -> None:
    at = ["--controller", controller.address]
    status = cli_json(*at, "switch", "status")
    assert status["connected"] is True
    assert status["ports"] == [1, 2, 3, 4]
    assert status["slots_free"] == 1024
    contributed = cli(*at, "switch", "counters", "--name", "contributed").stdout
    assert contributed.strip() == "no entries: no job is running"
    controller.running(switch, 2)
    contributed = cli(*at, "switch", "counters", "--name", "contributed").stdout
    assert contributed.strip() == "no frames so far"
    counts = {
        each["name"]: each["frames"] for each in cli_json(*at, "switch", "counters")["counts"]
    }
    assert counts["hello-punted"] == 2
    assert counts["round-opened"] == 0
    assert cli(*at, "switch", "counters").stdout.splitlines()[2].split()[:2] == [
        "hello-punted",
        "2",
    ]
    assert cli(*at, "switch", "tables").stdout.split() == [
        "admission", "bridge", "delivery", "own_address",
        "own_sender_ip", "own_sender_mac", "own_source", "uplink"
    ]  # fmt: skip
    [row] = cli_json(*at, "switch", "tables", "own_address")["entries"]
    assert row["match"] == {"ip": "10.77.255.254"}
    assert row["params"] == {"mac": "02:70:34:72:65:64"}
    assert not row["counted"]
    for table in ("own_source", "own_sender_ip", "own_sender_mac"):
        [forged] = controller.table(table)
        assert dict(forged.match).items() <= (row["match"] | row["params"]).items()
        assert forged.action == "is_forged"
    assert cli(*at, "switch", "tables", "nothing").returncode == Exit.NOT_FOUND


def test_shell(controller: RunningController) -> None:
    """A prompt on the controller's switch, which leaves the switch to the controller."""
    pytest.importorskip("p4runtime_sh", reason="needs p4runtime-shell")
    pytest.importorskip("IPython", reason="needs ipython")
    asked = "for entry in table_entry['own_address'].read(): print(entry)"
    done = cli("--controller", controller.address, "shell", typed=f"tables\n{asked}\nexit\n")
    assert done.returncode == 0, done.stderr
    assert "you only have read access" in done.stdout + done.stderr
    assert "admission\n" in done.stdout
    assert "action_id: " in done.stdout.partition("own_address\n")[2]
    assert cli_json("--controller", controller.address, "switch", "status")["primary"] is True


def test_watch_in_a_pipe(controller: RunningController, tmp_path: Path) -> None:
    at = ["--controller", controller.address]
    people, scripts = tmp_path / "people", tmp_path / "scripts"
    with (
        cli_process(*at, "watch", log=tmp_path / "log", output=people) as for_people,
        cli_process(*at, "watch", "--json", log=tmp_path / "log", output=scripts) as for_scripts,
    ):

        def both_see_events() -> bool:
            controller.call("CreateJob", name="x", world_size=2, slots=1)
            controller.call("DeleteJob", name="x")
            return all(text.read_text().count("\n") > 1 for text in (people, scripts))

        eventually(both_see_events, "both see events")
        first = json.loads(scripts.read_text().splitlines()[0])
        assert set(first) == {"time", "job", "incarnation", "kind", "text"}
        assert first["job"] == "x"
        assert "job-created    x 2 ranks, slots 0-0\n" in people.read_text()
        for_scripts.send_signal(signal.SIGINT)
        assert for_scripts.wait(timeout=DEADLINE) == 0
        for_people.send_signal(signal.SIGINT)
        assert for_people.wait(timeout=DEADLINE) == 0


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_watch_goes_on_with_the_next_controller(
    end: signal.Signals, mortal_switch: SwitchProcess, tmp_path: Path
) -> None:
    output, log = tmp_path / "output", tmp_path / "log"
    first = ServingProcess(mortal_switch, tmp_path)
    at = ["--controller", first.client.address, "watch", "--json"]
    with cli_process(*at, log=log, output=output) as watching:

        def sees_events(controller: ServingProcess, name: str) -> bool:
            controller.call("CreateJob", name=name, world_size=2, slots=1)
            controller.call("DeleteJob", name=name)
            return f'"job": "{name}"' in output.read_text()

        try:
            eventually(lambda: sees_events(first, "x"), "it sees events")
        finally:
            first.end(end)
        eventually(lambda: "is gone; waiting for one" in log.read_text(), "it says so")
        assert watching.poll() is None
        second = ServingProcess(mortal_switch, tmp_path)
        try:
            eventually(lambda: sees_events(second, "y"), "it sees the next one's events")
        finally:
            second.end(signal.SIGTERM)
        assert "answers again" in log.read_text()
        lines = output.read_text().splitlines()
        assert len(set(lines)) == len(lines)  # no event of the past comes again
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=DEADLINE) == 0


def test_the_live_view_says_that_no_controller_is_there() -> None:
    now = WatchSnapshot(0.0, [pb.Switch(address="a", connected=True, slots=4)], [])
    view = show(now, None, [], "", "no controller answers at unix:/c; waiting for one")
    text = text_of(lambda console: console.print(view), 100)
    assert text.startswith("no controller answers at unix:/c; waiting for one\nswitch a")


def test_the_live_view_has_no_rate_of_a_switch_that_has_started_again() -> None:
    def snapshot(time: float, frames: int) -> WatchSnapshot:
        switch = pb.Switch(name="s", address="a", connected=True, slots=4)
        count = pb.Count(name="dropped", frames=frames)
        return WatchSnapshot(time, [switch], [], {"s": {"dropped": count}})

    def shown(before: int, now: int) -> str:
        view = show(snapshot(2.0, now), snapshot(0.0, before), [], "")
        return text_of(lambda console: console.print(view), 100)

    assert "dropped 30 (10/s)" in shown(10, 30)
    assert "dropped 30   " in shown(900, 30)


def test_watching_a_job_that_is_to_come(controller: RunningController, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "output"
    at = ["--controller", controller.address]
    with cli_process(*at, "watch", "later", log=log, output=output) as watching:
        eventually(lambda: "no such job yet: later; waiting\n" in log.read_text(), "it says so")

        def sees_events() -> bool:
            controller.call("CreateJob", name="later", world_size=2, slots=1)
            controller.call("DeleteJob", name="later")
            return "job-created" in output.read_text()

        eventually(sees_events, "it sees the job's events")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=DEADLINE) == 0
    with ControlClient(controller.address) as client:
        assert is_there(client, "later")  # though it is over
        assert not is_there(client, "never")


# -- What people see ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (7, "7"), (9999, "9999"), (10000, "10 k"), (123456, "123.5 k"),
        (2.5, "2.5"), (12_345_678, "12.35 M"), (9.9e15, "9900 T"),
    ],
)  # fmt: skip
def test_quantities(number: float, text: str) -> None:
    assert render.quantity(number) == text
    assert render.quantity(number, "bit/s").endswith("bit/s")


def text_of(view: Callable[[Console], None], width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    view(console)
    return console.export_text()


def a_job(name: str = "train") -> pb.Job:
    members = [pb.Member(rank=rank, state="attached", mac="02::", port=1) for rank in range(2)]
    return pb.Job(
        name=name, incarnation=7, state=pb.RUNNING, world_size=2, slot_count=32, members=members
    )


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_live_view_fits_and_shows_rates(width: int) -> None:
    switch = pb.Switch(address="unix:/x", connected=True, slots=1024, slots_free=992)

    def at(time: float, frames: int) -> WatchSnapshot:
        ranks = [
            pb.RankStatistics(rank=rank, frames_up=frames, bytes_up=frames * 1102)
            for rank in range(2)
        ]
        outcomes = {"round-opened": pb.Count(name="round-opened", frames=frames)}
        return WatchSnapshot(time, [switch], [a_job()], {switch.name: outcomes}, {7: ranks})

    events = [pb.Event(time=1.0, job="train", kind="job-running", text="2 ranks " + "x" * 300)]
    view = show(at(12.0, 50_100), at(10.0, 100), events, "")
    text = text_of(lambda console: console.print(view), width)
    assert max(map(len, text.splitlines())) <= width
    assert "32 of 1024 slots in use" in text
    assert "25 k" in text  # contributions a second
    assert "220.4 Mbit/s" in text
    assert "round-opened 50.1 k (25 k/s)" in text
    assert "job-running" in text
    other = text_of(lambda console: console.print(show(at(1, 0), None, [], "other")), width)
    assert "no such job yet: other; waiting" in other


@pytest.mark.parametrize("width", [80, 100])
def test_a_jobs_figures_fit(width: int) -> None:
    own = pb.WorkerStatistics(
        collectives=1234, blocks=2_000_000, blocks_announced=500_000, retransmissions=17
    )
    ranks = {
        rank: pb.RankStatistics(
            rank=rank,
            frames_up=5_123_456,
            payload_up=1_600_000,
            empty_up=3_523_456,
            bytes_up=2_049_382_400,
            frames_down=5_123_000,
            bytes_down=3_586_100_000,
            worker=own if rank else None,
        )
        for rank in range(2)
    }
    job = a_job()
    for member in job.members:
        member.host, member.pid, member.mac = "gpu-node-07", 123456, "02:00:1c:68:a2:3f"
        member.ip, member.udp_port = "10.77.255.253", 49152
    text = text_of(lambda console: console.print(render.job_details(job, ranks)), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert any("10.77.255.253:49152" in line for line in lines)  # not folded
    [switch] = [line.split() for line in lines if line.split()[:2] == ["0", "1600"]]
    assert switch == ["0", "1600", "k", "3523", "k", "2049", "MB", "5123", "k", "3586", "MB"]
    told = [line.split() for line in lines if "25 %" in line]
    assert told == [
        ["1", "1234", "2000", "k", "1500", "k", "25", "%", "0", "0", "17"]
    ]  # rank 0 said nothing
    silent = text_of(lambda console: console.print(render.job_details(job, {})), width)
    assert "told by" not in silent
    assert "at the switch" not in silent


def test_plain_data_has_every_field_and_numbers_stay_numbers() -> None:
    data = plain(pb.Statistics(job=a_job(), ranks=[pb.RankStatistics(frames_up=2**63)]))
    assert data["job"]["state"] == "running"
    assert data["job"]["reason"] == ""
    assert data["ranks"][0]["frames_up"] == 2**63
    assert plain(pb.TableEntry(match={"ip": "1.2.3.4"}))["match"] == {"ip": "1.2.3.4"}
