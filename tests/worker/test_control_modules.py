# SPDX-License-Identifier: Apache-2.0
"""The control API's modules are those of control.proto."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from p4reduce.control import control_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]


def test_modules_are_not_older_than_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    tool = importlib.import_module("make_proto")
    assert tool.recorded() == tool.fingerprint(), "run `make proto`"


def test_modules_have_the_calls_and_messages_of_the_source() -> None:
    source = (ROOT / "worker" / "p4reduce" / "control" / "control.proto").read_text()
    service = pb.DESCRIPTOR.services_by_name["Control"]
    calls = re.findall(r"^  rpc (\w+)\(", source, re.MULTILINE)
    assert calls == [method.name for method in service.methods]
    messages = re.findall(r"^message (\w+)", source, re.MULTILINE)
    assert messages == list(pb.DESCRIPTOR.message_types_by_name)


def test_one_class_of_urgent_slots_reads_as_the_plain_field_that_it_was() -> None:
    """`uint32 urgent_slots = 10` of Join, and = 6 of Ready: a varint behind the field's tag."""
    assert pb.JoinRequest(urgent_slots=[8]).SerializeToString() == bytes([10 << 3, 8])
    assert pb.Ready(urgent_slots=[8]).SerializeToString() == bytes([6 << 3, 8])
    assert list(pb.JoinRequest.FromString(bytes([10 << 3, 8])).urgent_slots) == [8]
    assert list(pb.JoinRequest.FromString(b"").urgent_slots) == []
