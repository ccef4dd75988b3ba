# SPDX-License-Identifier: Apache-2.0
"""p4testgen's frames: for each path through parser, admission and tables, what must come out.

p4testgen (p4c's symbolic executor) gives for a path a frame that takes it, the table entries that
it needs, and the frame that must come out. It sends one frame per test and begins with empty
registers, so joins and repetitions are tested elsewhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2
from p4reduce.wire.format import (
    AGG_OFFSET,
    EMPTY_FRAME_BYTES,
    HALF_FRAME_BYTES,
    HEADER_FIELDS,
    PAYLOAD_FRAME_BYTES,
)
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_model.faults import compile_with
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.tables import TableEntry

ROOT = Path(__file__).resolve().parents[2]
COMPILED = ROOT / "p4src" / "compiled"
GENERATOR = "p4testgen"
SEED = 1
_NAMES = [field.name for field in HEADER_FIELDS]
FORMAT_AT = AGG_OFFSET + sum(field.bits for field in HEADER_FIELDS[: _NAMES.index("format")]) // 8
AGGREGATION_FRAMES = (EMPTY_FRAME_BYTES, HALF_FRAME_BYTES, PAYLOAD_FRAME_BYTES)

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
            one = made.field.add(name=own, number=number, type=kind, label=label)
            if type_name:
                one.type_name = type_name

    octets, integer, other = field.TYPE_BYTES, field.TYPE_INT32, field.TYPE_MESSAGE
    frame = [("packet", octets, "", False), ("port", integer, "", False)]
    message("InputPacketAtPort", *frame)
    message("OutputPacketAtPort", *frame, ("packet_mask", octets, "", False))
    message(
        "TestCase",
        ("input_packet", other, ".p4testgen.InputPacketAtPort", False),
        ("expected_output_packet", other, ".p4testgen.OutputPacketAtPort", True),
        ("entities", other, ".p4.v1.Entity", True),
    )
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p4testgen.TestCase"))


def _cases(directory: Path, *options: str) -> Iterator[tuple[str, Any]]:
    """Yield the tests that p4testgen makes of v1model's program, in order."""
    subprocess.run(
        [
            GENERATOR, "--target", "bmv2", "--arch", "v1model", "--std", "p4-16",
            "--test-backend", "PROTOBUF", "--seed", str(SEED), "--max-tests", "0",
            "--out-dir", str(directory), *options, "v1model.p4",
        ],
        cwd=ROOT / "p4src", check=True, capture_output=True, timeout=1200,
    )  # fmt: skip
    case_class = _case_class()
    for path in sorted(directory.glob("*.txtpb")):
        # Traces are for people, and their quotation marks are not escaped.
        text = re.sub(r"^(traces|metadata):.*\n", "", path.read_text(), flags=re.MULTILINE)
        yield path.stem, text_format.Parse(text, case_class())


class Switch:
    """The compiled program on the embedded switch, empty for each test."""

    def __init__(self, program: bytes) -> None:
        self._pipeline = Pipeline(program)
        text = (COMPILED / "p4reduce.p4info.txtpb").read_text()
        p4info = text_format.Parse(text, p4info_pb2.P4Info())
        self._tables = {table.preamble.id: table for table in p4info.tables}
        self._actions = {action.preamble.id: action.preamble.name for action in p4info.actions}

    def run(self, case: Any) -> list[tuple[int, bytes]]:
        """Return what comes out."""
        for register in self._pipeline.registers.values():
            register.cells[:] = [0] * len(register.cells)
        made = []
        for entity in case.entities:
            entry = entity.table_entry
            table = self._tables[entry.table_id]
            values = {match.field_id: _number(match.exact.value) for match in entry.match}
            key = tuple(values[field.id] for field in table.match_fields)
            action = entry.action.action
            arguments = tuple(_number(parameter.value) for parameter in action.params)
            row = TableEntry(key, 0, self._actions[action.action_id], arguments)
            self._pipeline.tables[table.preamble.name].insert(row)
            made.append((table.preamble.name, row))
        try:
            return list(self._pipeline.process(case.input_packet.port, case.input_packet.packet))
        finally:
            for name, row in made:
                self._pipeline.tables[name].delete(row.match, 0)

    def outcomes(self) -> set[FrameOutcome]:
        """Return how the frames were counted."""
        counted = enumerate(self._pipeline.counters["outcomes"].packets)
        return {FrameOutcome(number) for number, packets in counted if packets}


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


@dataclass(frozen=True)
class Difference:
    """A frame that came out otherwise."""

    case: str
    wanted: list[tuple[int, str]]
    found: list[tuple[int, str]]


def differences(cases: Iterable[tuple[str, Any]], switch: Switch) -> list[Difference]:
    """Return where the switch does not do what p4testgen says."""
    found = []
    for name, case in cases:
        wanted = [
            (one.port, _where(one.packet, one.packet_mask)) for one in case.expected_output_packet
        ]
        masks = [one.packet_mask for one in case.expected_output_packet]
        out = switch.run(case)
        if len(out) == len(masks):
            compared = [
                (port, _where(frame, mask)) for (port, frame), mask in zip(out, masks, strict=True)
            ]
        else:
            compared = [(port, frame.hex()) for port, frame in out]
        if compared != wanted:
            found.append(Difference(name, wanted, compared))
    return found


def _where(frame: bytes, mask: bytes) -> str:
    """Return the bits that are compared, in hexadecimal digits.

    A result's format is read from a register that the same frame may have written, and p4testgen
    reads what was there before. So that byte is not compared.
    """
    bits = bytearray(mask if len(mask) == len(frame) else b"\xff" * len(frame))
    if len(bits) in AGGREGATION_FRAMES:
        bits[FORMAT_AT] = 0
    return bytes(a & b for a, b in zip(frame, bits, strict=True)).hex()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Any]]:
    return list(_cases(tmp_path_factory.mktemp("generated")))


def test_each_path_ends_as_p4testgen_says(cases: list[tuple[str, Any]]) -> None:
    switch = Switch((COMPILED / "p4reduce.json").read_bytes())
    assert differences(cases, switch) == []
    assert len(cases) > 1000
    assert switch.outcomes() >= {
        FrameOutcome.PACKET_OUT_SENT,
        FrameOutcome.FORGED_SOURCE,
        FrameOutcome.L2_FORWARDED,
        FrameOutcome.L2_FLOODED,
        FrameOutcome.L2_HAIRPIN,
        FrameOutcome.BAD_IPV4_CHECKSUM,
        FrameOutcome.MALFORMED,
        FrameOutcome.BAD_VERSION,
        FrameOutcome.UNKNOWN_KIND,
        FrameOutcome.UNKNOWN_FORMAT,
        FrameOutcome.HELLO_PUNTED,
        FrameOutcome.NOT_ADMITTED,
        FrameOutcome.SLOT_OUT_OF_RANGE,
        FrameOutcome.NOT_FROM_PARENT,
        FrameOutcome.ROUND_OPENED,
        FrameOutcome.ROUND_COMPLETED,
        FrameOutcome.SUMS_SENT_UP,
        FrameOutcome.RESULT_PASSED_DOWN,
        FrameOutcome.STATUS_PASSED_DOWN,
    }


# A frame that is dropped for another reason looks the same, so these change what comes out.
FAULTS = {
    "a frame goes back to where it came from": (
        "common/bridge.p4",
        "            meta.port = NOWHERE;\n",
        "",
    ),
    "a station is elsewhere": (
        "common/bridge.p4",
        "        meta.port = port;\n",
        "        meta.port = port + 1;\n",
    ),
    "an answer goes to the switch's own port": (
        "common/aggregation.p4",
        "        hdr.udp.dst_port = hdr.udp.src_port;\n",
        "",
    ),
    "a HELLO reaches nobody": ("v1model/hello.p4", "            meta.port = CPU_PORT;\n", ""),
}


@pytest.mark.p4c
@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, cases: list[tuple[str, Any]]) -> None:
    assert differences(cases, Switch(compile_with((FAULTS[fault],))))
