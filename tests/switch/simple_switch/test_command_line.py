# SPDX-License-Identifier: Apache-2.0
"""What `p4reduce-simple-switch-grpc` makes of simple_switch_grpc's command lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from p4reduce_switch.p4runtime.listen_address import parse_grpc_address
from p4reduce_switch.ports.packet import InterfacePlace
from p4reduce_switch.ports.place import PortSpec
from p4reduce_switch.process.queue_options import read_queue_settings
from p4reduce_switch.process.settings import SwitchSettings
from p4reduce_switch.simple_switch import cli
from p4reduce_switch.simple_switch.arguments import parse
from p4reduce_switch.state.queue_settings import QueueSettings
from pipeline_programs import PROGRAMS

JSON = str(PROGRAMS / "queues.json")


def settings_of(command_line: str) -> SwitchSettings:
    return cli.settings_of(parse(command_line.replace("JSON", JSON).split()))


def test_what_the_tutorials_start(tmp_path: Path) -> None:
    """As utils/p4runtime_switch.py of p4lang/tutorials puts it together."""
    settings = settings_of(
        f"-i 1@s1-eth1 -i 2@s1-eth2 --pcap {tmp_path} --nanolog ipc:///tmp/bm-0-log.ipc "
        "--device-id 0 JSON --log-console --thrift-port 9090 "
        "-- --grpc-server-addr 0.0.0.0:50051 --cpu-port 510 --priority-queues 8"
    )
    assert settings.ports == [
        PortSpec(1, InterfacePlace("s1-eth1")),
        PortSpec(2, InterfacePlace("s1-eth2")),
    ]
    assert (settings.device_id, settings.cpu_port, settings.drop_port) == (0, 510, 511)
    assert settings.address == parse_grpc_address("0.0.0.0:50051")
    assert settings.pipeline_file == Path(JSON)
    assert settings.p4info_file is None
    assert (settings.capture_dir, settings.capture_by_direction) == (tmp_path, True)
    assert settings.queues == QueueSettings(priorities=8)
    assert settings.tls is None


@pytest.mark.parametrize(
    "command_line",
    [
        "--no-p4 --device-id 7 -- --drop-port 64 --grpc-server-addr 127.0.0.1:1",
        "--no-p4 --device-id=7 -- --drop-port=64 --grpc-server-addr=127.0.0.1:1",
        "--no-p --device 7 -- --drop 64 --grpc-server-a 127.0.0.1:1",
    ],
)
def test_options_may_be_joined_and_shortened(command_line: str) -> None:
    settings = settings_of(command_line)
    assert (settings.device_id, settings.drop_port, settings.address.port) == (7, 64, 1)
    assert settings.pipeline_file is None


def test_defaults_are_simple_switch_s() -> None:
    settings = settings_of("JSON")
    assert (settings.device_id, settings.cpu_port, settings.drop_port) == (0, None, 511)
    assert str(settings.address) == "0.0.0.0:9559"
    assert settings.queues.is_default
    assert settings.capture_dir is None


def test_the_program_may_stand_behind_the_dashes() -> None:
    assert settings_of("-i1@a -- JSON --cpu-port 9").pipeline_file == Path(JSON)


def test_pcap_without_a_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings_of("--no-p4 --pcap").capture_dir == Path()
    assert settings_of("--no-p4 --pcap -i 1@a -- --cpu-port 9").capture_dir == Path()


def test_a_drop_port_frees_511() -> None:
    settings = settings_of("--no-p4 -i 511@a -- --drop-port 510")
    assert settings.ports == [PortSpec(511, InterfacePlace("a"))]


def test_queue_options() -> None:
    settings = settings_of("--no-p4 -- --queue-depth 3 --queue-depth 2=9 --queue-rate 1=500")
    assert settings.queues == QueueSettings(depth=3, port_depths={2: 9}, port_rates={1: 500})
    assert read_queue_settings(1, ["1", "2", "3=4", "3=5"], []) == QueueSettings(
        depth=2, port_depths={3: 5}
    )


WRONG = [
    ("", "please specify an input JSON configuration file"),
    ("-i 1", "'1' is not of the form PORT@INTERFACE"),
    ("-i 1@", "'1@' is not of the form PORT@INTERFACE"),
    ("-i x@a", "port 'x' is not within 0 to 511"),
    ("-i 512@a", "port '512' is not within 0 to 511"),
    ("-i 1@a/b", "'a/b' is not an interface name"),
    ("--no-p4 --device-id -1", "'-1' is not a number"),
    ("--no-p4 --device-id x", "'x' is not a number"),
    ("--no-p4 --cpu-port 1", "unrecognized arguments: --cpu-port (target options"),
    ("--no-p4 -- --nonsense", "unrecognized arguments: --nonsense"),
    ("--no-p4 -- --cpu-port 512", "port '512' is not within 0 to 511"),
    ("--no-p4 -- --grpc-server-addr nowhere", "'nowhere' is not of the form HOST:PORT"),
    ("--no-p4 --log-console --log-file x", "exclusive"),
    ("--no-p4 --log-level loud", "invalid choice: 'loud'"),
    ("--no-p4 --log-file x --log-file-max-size 0", "must be greater than 0"),
    ("--no-p4 --debugger", "--debugger: the debugger is that of p4reduce-switch --debug PATH"),
    (
        "--no-p4 --debugger-addr ipc:///x",
        "--debugger-addr: the debugger is that of p4reduce-switch --debug PATH",
    ),
    ("--no-p4 --use-files 1", "--use-files: packets come from interfaces only"),
    ("--no-p4 --packet-in ipc:///x", "--packet-in: packets come from interfaces only"),
    ("--no-p4 --restore-state x", "--restore-state: state cannot be restored"),
    ("--no-p4 -- --dp-grpc-server-addr 0.0.0.0:1", "--dp-grpc-server-addr: packets come from"),
    ("--no-p4 -- --load-modules x.so", "--load-modules: BMv2's modules"),
]


@pytest.mark.parametrize(("command_line", "complaint"), WRONG)
def test_what_cannot_be_read(
    command_line: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        settings_of(command_line)
    assert ended.value.code == 1  # as simple_switch_grpc
    said = capsys.readouterr().err
    assert complaint in said
    assert "--help" in said


@pytest.mark.parametrize(
    ("command_line", "complaint"),
    [
        ("nowhere.json", "there is no file nowhere.json"),
        ("--no-p4 --pcap nowhere", "Directory 'nowhere' specified with '--pcap' does not exist"),
        ("--no-p4 -- --cpu-port 0", "0 is not a valid value"),
        ("--no-p4 -i 5@a -- --cpu-port 5", "--interface 5=a: 5 is the CPU port (--cpu-port)"),
        ("--no-p4 -i 511@a", "--interface 511=a: what is sent to port 511 is dropped"),
        ("--no-p4 -i 1@a -i 1@b", "--interface 1=b and --interface 1=a collide"),
        ("--no-p4 -i 1@a -i 2@a", "--interface 2=a and --interface 1=a collide"),
        ("--no-p4 -- --priority-queues 9", "priority queues: 9 is not within 1 to 8"),
        ("--no-p4 -- --queue-depth x", "'x' is not of the form NUMBER or PORT=NUMBER"),
        ("--no-p4 -- --queue-rate 600=1", "--queue-rate 600=1: a port is within 0 to"),
        ("--no-p4 -- --grpc-server-ssl", "--grpc-server-cert is required"),
        ("--no-p4 -- --grpc-server-ssl --grpc-server-cert x", "--grpc-server-key is required"),
        (
            "--no-p4 -- --grpc-server-ssl --grpc-server-cert x --grpc-server-key y "
            "--grpc-server-with-client-auth",
            "needs --grpc-server-cacert",
        ),
    ],
)
def test_what_cannot_be_done(command_line: str, complaint: str) -> None:
    with pytest.raises((ValueError, cli.StartError)) as refused:
        settings_of(command_line)
    assert complaint in str(refused.value)


def test_a_ca_is_only_asked_with_client_auth() -> None:
    """As BMv2: a CA alone checks nobody."""
    line = "--no-p4 -- --grpc-server-ssl --grpc-server-cert c --grpc-server-key k "
    line += "--grpc-server-cacert a"
    for more, ca in (("", None), (" --grpc-server-with-client-auth", Path("a"))):
        tls = settings_of(line + more).tls
        assert tls is not None
        assert tls.ca == ca


@pytest.mark.parametrize("option", ["--help", "--version", "--json-version"])
def test_what_only_answers(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([option])
    assert ended.value.code == 0
    wanted = {"--help": "--grpc-server-addr", "--version": "p4reduce", "--json-version": "2."}
    assert wanted[option] in capsys.readouterr().out


def test_what_has_no_meaning_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "--no-p4 JSON --thrift-port 1 --nanolog x --notifications-addr y --max-port-count 9 "
    line += "--dump-packet-data 9 -- --max-mc-groups 9 --disable-swap --grpc-server-cert z"
    options = parse(line.split())
    cli.remark(options, cli.settings_of(options))
    said = [record.getMessage() for record in caplog.records]
    for part in (
        "--thrift-port",
        "--nanolog",
        "--notifications-addr",
        "--max-port-count",
        "--dump-packet-data",
        "--max-mc-groups",
        "--disable-swap",
    ):
        assert sum(f"{part} has no meaning here" in text for text in said) == 1, part
    assert sum("JSON is not loaded" in text for text in said) == 1
    assert sum("certificates are not used" in text for text in said) == 1
    assert sum("reachable from other machines" in text for text in said) == 1
    assert len(said) == 10


def test_quiet_where_all_is_plain(caplog: pytest.LogCaptureFixture) -> None:
    options: Any = parse(f"{JSON} -- --grpc-server-addr 127.0.0.1:1".split())
    cli.remark(options, cli.settings_of(options))
    assert caplog.records == []
