# SPDX-License-Identifier: Apache-2.0
"""Examines the switch, as its controller reports it and by its own P4Runtime server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import grpc
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
from p4reduce.control import control_pb2 as pb
from p4reduce.control.controller_address import is_local
from p4reduce.control.tls import TlsError, TlsFiles
from p4reduce_common.grpc_channels import open_channel

from p4reduce_controller.doctor.control_path import Answers
from p4reduce_controller.doctor.finding import Finding, FindingStatus, failure, ok, skipped, warning
from p4reduce_controller.doctor.ports import compare
from p4reduce_controller.fabric.compiled_program import load_program
from p4reduce_controller.fabric.p4client import NoSwitchAnswerError, wait_for_server
from p4reduce_controller.fabric.switch_ports import SwitchPorts, known
from p4reduce_controller.terminal.render import port_ranges

SECTION = "Switch"

# By what is in the message.
_TLS_CURES = {
    "it speaks TLS": "Give --switch-tls-cert, --switch-tls-key and --switch-tls-ca.",
    "it does not speak TLS": "Leave out --switch-tls-…, or start the switch with TLS files.",
    "its certificate does not pass": "Give the CA of the switch's certificate as --switch-tls-ca.",
    "it refuses our certificate": "Have ours signed by the CA that the switch was given.",
}

# Outcomes that a set-up in order does not have, and where they come from.
SYMPTOMS = {
    "malformed": "Something on the path changes frames, or a worker has another version.",
    "bad-version": "A worker has another version.",
    "bad-ipv4-checksum": "Checksum offload of an interface: ethtool -K IFACE tx off rx off.",
    "not-admitted": (
        "Frames came from another port or address than their rank attached from, or of a job "
        "that is over. A few after a job has ended are harmless; many are a loop or an intruder."
    ),
    "slot-out-of-range": "A worker uses slots of another job; it is broken or an intruder.",
    "hello-limited": (
        "A port sent more HELLOs than serve --hello-rate: very many ranks behind one port, or a "
        "flood."
    ),
    "forged-source": (
        "Frames with the switch's own addresses came in: an intruder, a loop, or another switch "
        "with the same ones (serve --switch-mac, --switch-ip)."
    ),
}


@dataclass(frozen=True)
class _ServerVersion:
    """A P4Runtime server's version, or the reason why it gave none."""

    version: str = ""
    ports: SwitchPorts | None = None
    error: str = ""


def examine(
    address: str | None, tls: TlsFiles | None, timeout: float, answers: Answers, *, near: bool
) -> Iterator[Finding]:
    """Examine the controller's report, and the P4Runtime server at `address` if given.

    With `near` the controller is on this machine, so its switch's address is valid here too.
    """
    server = None
    if address is not None:
        server = _ask(address, tls, timeout)
        yield _server(address, server)
    if answers.switch is None:
        yield skipped(
            SECTION,
            "connection",
            "no controller reported it",
            "" if address else "Give --switch ADDR to look at a P4Runtime server by itself.",
        )
        return
    for each in (answers, *answers.others):
        if each.switch is None:
            continue
        for finding in _examine_one(each, each.switch, address, server, tls, timeout, near=near):
            named = f"{each.switch.name}: {finding.name}" if answers.others else finding.name
            yield replace(finding, name=named)


def _examine_one(
    answers: Answers,
    switch: pb.Switch,
    address: str | None,
    server: _ServerVersion | None,
    tls: TlsFiles | None,
    timeout: float,
    *,
    near: bool,
) -> Iterator[Finding]:
    connection = _connection(switch, answers.silent)
    yield connection
    if connection.status is FindingStatus.OK:
        if address != switch.address:
            there = near or not is_local(switch.address)
            server = _ask(switch.address, tls, timeout) if there else None
        yield _ports(switch, server)
    if switch.HasField("uplink"):
        yield _uplink(switch.uplink)
    yield _program(switch)
    yield _slots(switch)
    yield from _symptoms(answers)


def _uplink(uplink: pb.Uplink) -> Finding:
    found = f"port {uplink.port} leads to {uplink.parent} port {uplink.parent_port}"
    if uplink.works:
        return ok(SECTION, "uplink", found)
    return failure(
        SECTION,
        "uplink",
        f"port {uplink.port} should lead to {uplink.parent} port {uplink.parent_port}: "
        f"{uplink.reason}",
        "See the cable and both switches' ports, and compare them with the topology's file.",
    )


def _ask(address: str, tls: TlsFiles | None, timeout: float) -> _ServerVersion:
    """Ask for its version, the only request for a client that is not its controller."""
    try:
        wait_for_server(address, timeout, tls)
        credentials = None if tls is None else tls.channel_credentials()
        with open_channel(address, credentials) as channel:
            stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
            request = p4runtime_pb2.CapabilitiesRequest()
            reply, call = stub.Capabilities.with_call(request, timeout=timeout)
            ports = known(call.trailing_metadata() or (), address)
    except (NoSwitchAnswerError, TlsError) as error:
        return _ServerVersion(error=str(error))
    except grpc.RpcError as error:
        found = f"the server at {address} does not speak P4Runtime: {error.code().name}"
        return _ServerVersion(error=found)
    return _ServerVersion(reply.p4runtime_api_version, ports)


def _server(address: str, server: _ServerVersion) -> Finding:
    name = "P4Runtime"
    if not server.error:
        return ok(SECTION, name, f"{server.version} at {address}")
    known = next((cure for text, cure in _TLS_CURES.items() if text in server.error), None)
    cure = known or (
        "Start one: p4reduce-switch --grpc-addr ADDR --port 1=…, or BMv2 (docs/bmv2.md); see "
        "whether something else has the port: ss -ltnp."
    )
    return failure(SECTION, name, server.error, cure)


def _ports(switch: pb.Switch, server: _ServerVersion | None) -> Finding:
    if server is None:
        why = f"{switch.address} is an address of the controller's machine, and that is another"
    else:
        why = server.error or "P4Runtime has no list of ports, and this switch reports none"
    return compare(SECTION, switch.ports, server.ports if server else None, why)


def _connection(switch: pb.Switch, silent: str) -> Finding:
    name = "connection"
    if not switch.connected:
        return failure(
            SECTION,
            name,
            f"{switch.address}: {switch.reason}",
            "Start the switch again at that address: the controller looks for it.",
        )
    if not switch.primary:
        return failure(
            SECTION,
            name,
            f"{switch.address}: another controller is primary",
            "Stop that one, or start this one with a higher --election-id.",
        )
    if silent:
        return failure(
            SECTION,
            name,
            f"{switch.address}: {silent}",
            "The controller answers, its switch does not: see whether the switch's process was "
            "stopped or has ended, and its log. Start it again at that address: the controller "
            "looks for it.",
        )
    return ok(
        SECTION,
        name,
        f"{switch.address}, device {switch.device_id}, primary with election id "
        f"{switch.election_id}, ports {port_ranges(switch.ports)}",
    )


def _program(switch: pb.Switch) -> Finding:
    ours = f"p4reduce {load_program().digest[:12]}"
    if switch.program != ours:
        return failure(
            SECTION,
            "program",
            f"the switch has {switch.program}, and this is {ours}",
            "Controller and workers are of different versions: install the same, and start the "
            "controller again.",
        )
    return ok(SECTION, "program", ours)


def _slots(switch: pb.Switch) -> Finding:
    found = f"{switch.slots_free:,} of {switch.slots:,} are free"
    if not switch.slots_free:
        return warning(
            SECTION,
            "slots",
            found,
            "No further job can start. Delete an unused one (see p4reduce-controller job list).",
        )
    return ok(SECTION, "slots", found)


def _symptoms(answers: Answers) -> Iterator[Finding]:
    seen = {name: n for name in SYMPTOMS if (n := answers.counts.get(name, 0))}
    for name, count in seen.items():
        yield warning(SECTION, name, f"{count:,} frames", SYMPTOMS[name])
    if answers.switch is not None and answers.switch.hellos_refused:
        yield warning(
            SECTION,
            "HELLOs refused",
            f"{answers.switch.hellos_refused:,}",
            "p4reduce-controller watch says which and why.",
        )
    elif not seen and answers.counts:
        yield ok(SECTION, "counters", "no frame was refused")
