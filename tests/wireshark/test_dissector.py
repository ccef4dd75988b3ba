# SPDX-License-Identifier: Apache-2.0
"""Wireshark shows what scapy says: one definition of the header, two readers."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.lanes import unpack
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "wireshark" / "p4reduce.lua"
WORKER = wire.Endpoint("02:00:00:00:00:01", "10.77.0.1", 49152)
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
LANES = np.arange(-128, 128).astype(">i4").tobytes()

needs_tshark = pytest.mark.skipif(
    shutil.which("tshark") is None, reason="tshark is not installed (apt-get install tshark)"
)


def dissect(tmp_path: Path, *frames: bytes) -> list[dict[str, Any]]:
    """Return the fields that tshark shows of each frame."""
    capture = tmp_path / "capture.pcap"
    wrpcap(str(capture), [Ether(frame) for frame in frames])
    answer = subprocess.run(
        [
            "tshark",
            "-X",
            f"lua_script:{SCRIPT}",
            "-r",
            str(capture),
            "-T",
            "json",
            "--no-duplicate-keys",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert "Lua Error" not in answer.stderr + answer.stdout
    layers: list[dict[str, Any]] = [
        packet["_source"]["layers"] for packet in json.loads(answer.stdout)
    ]
    return layers


@needs_tshark
@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (
            Aggregation(kind=wire.FrameKind.HELLO, job=7, rank=1, contributors=0x1122334455667788),
            b"",
        ),
        (
            Aggregation(
                kind=wire.FrameKind.CONTRIBUTE,
                flags=int(wire.Flag.PAYLOAD),
                rank=63,
                job=0xFFFFFFFE,
                slot=1023,
                next_exponent=254,
                round=17,
                block=5,
                next_block=8,
                tag=0xDEADBEEF,
            ),
            LANES,
        ),
        (
            Aggregation(
                kind=wire.FrameKind.RESULT,
                flags=int(wire.Flag.PAYLOAD | wire.Flag.SECOND_HALF | wire.Flag.OVERFLOW),
                format=wire.Format.INT16,
                contributors=3,
            ),
            LANES[:512],
        ),
        (Aggregation(kind=wire.FrameKind.STATUS, flags=int(wire.Flag.MISMATCH), block=5), b""),
        (
            Aggregation(flags=int(wire.Flag.RETRANSMISSION | wire.Flag.PADDED), block=5),
            bytes(1024),
        ),
    ],
    ids=["hello", "contribute", "half", "status", "padded"],
)
def test_tshark_shows_each_field_as_scapy_does(
    header: Aggregation, payload: bytes, tmp_path: Path
) -> None:
    up = header.kind in (wire.FrameKind.HELLO, wire.FrameKind.CONTRIBUTE)
    source, destination = (WORKER, SWITCH) if up else (SWITCH, WORKER)
    frame = wire.template(source, destination, header, payload)
    (layers,) = dissect(tmp_path, frame)
    shown = layers["p4reduce"]
    expected = Ether(frame)[Aggregation]
    for field in Aggregation.fields_desc:
        assert int(shown[f"p4reduce.{field.name}"], 0) == int(getattr(expected, field.name))
    flags = shown["p4reduce.flags_tree"]
    for flag in wire.Flag:
        is_set = flags[f"p4reduce.flags.{str(flag.name).lower()}"] in ("1", "True", True)
        assert is_set == bool(expected.flags.value & flag)
    assert "length" not in json.dumps(shown), "the length was found not to fit the flags"


@needs_tshark
def test_tshark_shows_the_lanes_in_their_format(tmp_path: Path) -> None:
    frames = [
        wire.template(
            WORKER, SWITCH, Aggregation(flags=int(wire.Flag.PAYLOAD), format=lanes), LANES
        )
        for lanes in wire.Format
    ]
    for lanes, layers in zip(wire.Format, dissect(tmp_path, *frames), strict=True):
        shown = layers["p4reduce"]["p4reduce.payload_tree"]["p4reduce.lane"]
        expected = unpack(np.frombuffer(LANES, np.uint8), lanes)
        assert [int(value) for value in shown] == expected.tolist()


@needs_tshark
def test_a_length_that_does_not_fit_the_flags_is_pointed_out(tmp_path: Path) -> None:
    frame = wire.template(WORKER, SWITCH, Aggregation(flags=int(wire.Flag.PAYLOAD)), LANES[:100])
    (layers,) = dissect(tmp_path, frame)
    assert "100 bytes after the header, the flags say 1024" in json.dumps(layers)


def info(capture: Path) -> list[str]:
    """Return the column of each frame that says what it is."""
    command = ["tshark", "-X", f"lua_script:{SCRIPT}", "-r", str(capture)]
    answer = subprocess.run(
        [*command, "-T", "fields", "-e", "_ws.col.Info"],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return answer.stdout.splitlines()


@needs_tshark
def test_a_bit_of_two_meanings_is_named_by_the_kind_of_the_frame(tmp_path: Path) -> None:
    flags = int(wire.Flag.FIRST_HALF | wire.Flag.SECOND_HALF)
    kinds = (wire.FrameKind.CONTRIBUTE, wire.FrameKind.STATUS, wire.FrameKind.RESULT)
    frames = [wire.template(SWITCH, WORKER, Aggregation(kind=kind, flags=flags)) for kind in kinds]
    wrpcap(str(tmp_path / "capture.pcap"), [Ether(frame) for frame in frames])
    said = [line.split()[-2:] for line in info(tmp_path / "capture.pcap")]
    assert said == [["TELL_ALL", "FOR_ONE"], ["TELL_ALL", "FOR_ONE"], ["FIRST_HALF", "SECOND_HALF"]]


@needs_tshark
def test_the_sample_capture_reads_as_the_docs_say() -> None:
    documented = (ROOT / "docs" / "wireshark.md").read_text()
    shown = info(ROOT / "docs" / "captures" / "two-ranks-port1.pcap")
    assert len(shown) == 20
    for number, said in enumerate(shown, 1):
        line = next(row for row in documented.splitlines() if row.startswith(f"{number:>2}  "))
        assert line.endswith(said)
