# SPDX-License-Identifier: Apache-2.0
"""The wire format: one definition, seen by scapy, by numpy and by the P4 program."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from ipaddress import IPv4Address
from pathlib import Path

import numpy as np
import pytest
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.frames import HEADER
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

SOURCES = Path(__file__).parents[3] / "p4src"
WORKER = wire.Endpoint("02:00:00:00:00:05", "10.77.0.5", 49157)
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)


def as_record(frame: bytes) -> np.void:
    buffer = np.zeros(wire.FRAME_STRIDE, np.uint8)
    buffer[: len(frame)] = np.frombuffer(frame, np.uint8)
    return buffer.view(HEADER)[0]


def full_header() -> Aggregation:
    return Aggregation(
        kind=wire.FrameKind.RESULT,
        flags=int(wire.Flag.PAYLOAD | wire.Flag.RETRANSMISSION),
        rank=0x0102,
        job=0x03040506,
        slot=0x0708,
        format=wire.Format.INT8,
        next_exponent=0x0A,
        round=0x0B0C0D0E,
        block=0x0F101112,
        next_block=0x13141516,
        tag=0x1718191A,
        contributors=0x1B1C1D1E1F202122,
    )


def p4_constants() -> dict[str, int]:
    names = ("common/header.p4", "common/constants.p4", "v1model/sizes.p4")
    text = "".join((SOURCES / name).read_text() for name in names)
    found = dict(re.findall(r"const\s+bit<\d+>\s+(\w+)\s*=\s*(0x[0-9A-Fa-f]+|\d+)\s*;", text))
    lanes = re.search(r"#define LANES (\d+)", text)
    assert lanes is not None
    return {name: int(value, 0) for name, value in found.items()} | {
        "PAYLOAD_BYTES": 4 * int(lanes[1])
    }


def test_numbers_are_those_of_the_p4_program() -> None:
    p4 = p4_constants()
    for name in (
        "AGGREGATION_PORT",
        "AGGREGATION_VERSION",
        "ETHERTYPE_IPV4",
        "PROTOCOL_UDP",
        "ETHERNET_BYTES",
        "IPV4_BYTES",
        "UDP_BYTES",
        "AGG_BYTES",
        "PAYLOAD_BYTES",
        "HALF_BYTES",
    ):
        assert getattr(wire, name) == p4[name], name
    assert p4["SLOTS"] == wire.MAX_SLOTS
    for enum, prefix in ((wire.FrameKind, "KIND_"), (wire.Flag, "FLAG_"), (wire.Format, "FORMAT_")):
        assert {said: int(member) for said, member in enum.__members__.items()} == {
            name.removeprefix(prefix): value
            for name, value in p4.items()
            if name.startswith(prefix) and name != "FLAG_FINAL"  # which is in slots only
        }


def test_layer_is_as_long_as_the_protocol_says() -> None:
    assert len(bytes(Aggregation())) == wire.AGG_BYTES
    assert sum(field.sz for field in Aggregation.fields_desc) == wire.AGG_BYTES


def test_numpy_reads_what_scapy_writes() -> None:
    record = as_record(wire.template(WORKER, SWITCH, full_header(), bytes(1024)))
    assert bytes(record["eth_dst"]).hex(":") == SWITCH.mac
    assert bytes(record["eth_src"]).hex(":") == WORKER.mac
    assert record["eth_type"] == 0x0800
    assert record["ip_version_ihl"] == 0x45
    assert record["ip_len"] == 20 + 8 + 36 + 1024
    assert record["ip_src"] == int(IPv4Address(WORKER.ip))
    assert record["ip_dst"] == int(IPv4Address(SWITCH.ip))
    assert record["udp_sport"] == WORKER.udp_port
    assert record["udp_dport"] == 0xBEE0
    assert record["udp_len"] == 8 + 36 + 1024
    assert record["udp_chksum"] == 0
    assert record["version_kind"] == 0x11
    header = full_header()
    for name in HEADER.names or ():
        if not name.startswith(("eth_", "ip_", "udp_")) and name != "version_kind":
            assert record[name] == int(getattr(header, name)), name


@pytest.mark.parametrize(("prefix", "layer"), [("eth_", Ether), ("ip_", IP), ("udp_", UDP)])
def test_the_standard_headers_are_where_scapy_has_them(prefix: str, layer: type[Packet]) -> None:
    starts = {"eth_": 0, "ip_": 14, "udp_": 34}
    bits, places = 0, {}
    for field in layer.fields_desc:
        if field.name == "options":
            continue  # variable, and never there: ihl is 5
        places[field.name] = bits
        bits += round(8 * field.sz)
    for name in HEADER.names or ():
        if name.startswith(prefix):
            # A column of several fields is named by all of them, and begins where the first does.
            first = next(field for field in places if name[len(prefix) :].startswith(field))
            column, offset, *_ = (HEADER.fields or {})[name]
            assert 8 * (offset - starts[prefix]) == places[first], name
            later = [place for place in (*places.values(), bits) if place > places[first]]
            assert places[first] + 8 * column.itemsize in later, name


def test_template_is_what_scapy_builds() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(200):
        here, there = (
            wire.Endpoint(
                draw.randbytes(6).hex(":"),
                str(IPv4Address(draw.getrandbits(32))),
                draw.getrandbits(16),
            )
            for _ in range(2)
        )
        header = Aggregation(draw.randbytes(wire.AGG_BYTES))
        payload = draw.choice([b"", draw.randbytes(512), draw.randbytes(1024)])
        ip = IP(src=here.ip, dst=there.ip, id=0, flags="DF", ttl=64, proto=17)
        udp = UDP(sport=here.udp_port, dport=there.udp_port, chksum=0)
        ethernet = Ether(src=here.mac, dst=there.mac, type=0x0800)
        built = bytes(ethernet / ip / udp / header / Raw(payload))
        assert wire.template(here, there, header, payload) == built, (here, there)


@pytest.mark.parametrize("mac", ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "02:00:00:00:00:g1"])
def test_a_frame_needs_mac_addresses(mac: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(mac))):
        wire.template(wire.Endpoint(mac, "10.77.0.1", 1), SWITCH, Aggregation())


def test_neither_library_nor_controller_loads_scapys_ip_layers() -> None:
    # They would read all interfaces and routes of the machine: seconds, where there are hundreds.
    code = (
        "import sys, p4reduce.communicator, p4reduce.compression, p4reduce_controller.serving, "
        "p4reduce_controller.cli.command_line, p4reduce_lab.cli\n"
        "print([name for name in sys.modules if name.startswith(('scapy.layers', 'scapy.arch'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_scapy_reads_what_numpy_writes() -> None:
    buffer = np.zeros(wire.FRAME_STRIDE, np.uint8)
    empty = wire.template(WORKER, SWITCH, Aggregation())
    buffer[: len(empty)] = np.frombuffer(empty, np.uint8)
    record = buffer.view(HEADER)
    record["flags"] = wire.Flag.NONFINITE
    record["next_block"] = 77
    record["contributors"] = 1 << 63
    layer = Ether(buffer[: len(empty)].tobytes())[Aggregation]
    assert layer.flags == "NONFINITE"
    assert (layer.next_block, layer.contributors) == (77, 1 << 63)
    assert layer.kind == wire.FrameKind.CONTRIBUTE


@pytest.mark.parametrize(("payload", "length"), [(b"", 78), (bytes(1024), 1102)])
def test_template_has_right_lengths_and_checksum(payload: bytes, length: int) -> None:
    frame = wire.template(WORKER, SWITCH, Aggregation(), payload)
    assert len(frame) == length
    packet = Ether(frame)
    assert packet[IP].len == length - 14
    assert packet[UDP].len == length - 34
    header = np.frombuffer(frame[14:34], ">u2").astype(np.uint64)
    total = int(header.sum())
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF


def test_layer_is_found_in_both_directions() -> None:
    up = Ether(wire.template(WORKER, SWITCH, Aggregation(job=3)))
    down = Ether(wire.template(SWITCH, WORKER, Aggregation(job=4)))
    assert up[Aggregation].job == 3
    assert down[Aggregation].job == 4


def test_hello_is_read_back() -> None:
    header = Aggregation(kind=wire.FrameKind.HELLO, job=9, rank=63, contributors=0xFEDCBA9876543210)
    hello = wire.parse_hello(wire.template(WORKER, SWITCH, header))
    assert hello == wire.Hello(9, 63, 0xFEDCBA9876543210, WORKER.mac, WORKER.ip, WORKER.udp_port)


@pytest.mark.parametrize("length", [0, 1, 77, 79, 1102])
def test_hello_of_other_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"this frame {length}"):
        wire.parse_hello(bytes(length))


@pytest.mark.parametrize(
    ("column", "value"),
    [("eth_type", 0x86DD), ("ip_proto", 6), ("udp_dport", 80), ("version_kind", 0x10)],
)
def test_other_frames_are_no_hello(column: str, value: int) -> None:
    frame = wire.template(WORKER, SWITCH, Aggregation(kind=wire.FrameKind.HELLO))
    buffer = np.zeros(wire.FRAME_STRIDE, np.uint8)
    buffer[: len(frame)] = np.frombuffer(frame, np.uint8)
    buffer.view(HEADER)[column] = value
    with pytest.raises(ValueError, match=column):
        wire.parse_hello(buffer[: len(frame)].tobytes())


def test_formats_fill_a_block() -> None:
    assert [lanes.lanes for lanes in wire.Format] == [256, 512, 1024, 256, 2048]
    largest = [2**31 - 1, 2**15 - 1, 127, 2**31 - 1, 7]
    assert [lanes.lane_maximum for lanes in wire.Format] == largest


@pytest.mark.parametrize("slots", [1, 8, 32, 33, 128, 512, wire.MAX_SLOTS])
def test_4_bits_take_an_eighth_of_the_bytes_with_any_number_of_slots(slots: int) -> None:
    """Frames that open stripes included, from 1 MB of float32 on: at most 3 % more."""

    def sent(size: int, lane_format: wire.Format) -> int:
        blocks = size // 4 // lane_format.lanes
        stripes = wire.stripes_of(blocks, slots, lane_format.lane_bits)
        assert 1 <= stripes <= min(slots, blocks)
        return blocks * wire.PAYLOAD_FRAME_BYTES + stripes * wire.EMPTY_FRAME_BYTES

    for megabytes in (1, 2, 3, 4, 8, 16, 64):
        eighth = sent(megabytes << 20, wire.Format.INT32) / 8
        assert sent(megabytes << 20, wire.Format.INT4) <= 1.03 * eighth


def test_few_blocks_are_spread_over_as_many_slots_as_possible() -> None:
    assert [wire.stripes_of(blocks, 128, 4) for blocks in (0, 1, 32, 64, 97, 9999)] == [
        1,
        1,
        32,
        32,
        33,
        128,
    ]
    assert [wire.stripes_of(blocks, 128, 8) for blocks in (0, 1, 32, 64, 97, 9999)] == [
        1,
        1,
        32,
        32,
        49,
        128,
    ]
