# SPDX-License-Identifier: Apache-2.0
"""p4testgen's frames: for each path through parser, admission and tables, what must come out.

p4testgen (p4c's symbolic executor) gives for a path a frame that takes it, the table entries that it
needs, and the frame that must come out. It sends one frame per test and begins with empty
registers, so joins and repetitions are tested elsewhere.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import p4reduce_controller.fabric.schema  # noqa: F401  P4Runtime's messages under any protobuf
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.tables import TableEntry

ROOT = Path(__file__).resolve().parents[2]
COMPILED = ROOT / "p4src" / "compiled"
GENERATOR = "p4testgen"
SEED = 1

pytestmark = [
    pytest.mark.p4testgen,
    pytest.mark.long,
    pytest.mark.skipif(shutil.which(GENERATOR) is None, reason=f"{GENERATOR} is not on PATH"),
]


def _case_class() -> Any:
    """Return the message TestCase, of which p4testgen writes one per file."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="p4testgen.proto",
        package="p4testgen",
        syntax="proto3",
        dependency=[p4runtime_pb2.DESCRIPTOR.name],
    )

    def message(name: str, *fields: tuple[str, int, str, bool]) -> None:
        made = file.message_type.add(name=name)
        for number, (own, kind, type_name, repeated) in enumerate(fields, 1):
            label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            made.field.add(name=own, number=number, type=kind, type_name=type_name, label=label)

    octets, integer, text, other = (
        field.TYPE_BYTES,
        field.TYPE_INT32,
        field.TYPE_STRING,
        field.TYPE_MESSAGE,
    )
    frame = [("packet", octets, "", False), ("port", integer, "", False)]
    message("InputPacketAtPort", *frame)
    message("OutputPacketAtPort", *frame, ("packet_mask", octets, "", False))
    message(
        "TestCase",
        ("input_packet", other, ".p4testgen.InputPacketAtPort", False),
        ("expected_output_packet", other, ".p4testgen.OutputPacketAtPort", True),
        ("entities", other, ".p4.v1.Entity", True),
        ("traces", text, "", True),
        ("metadata", text, "", True),
    )
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p4testgen.TestCase"))
