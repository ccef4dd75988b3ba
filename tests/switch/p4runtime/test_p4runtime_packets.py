# SPDX-License-Identifier: Apache-2.0
"""Packet-in and packet-out."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2 as p4rt
from p4reduce_switch.p4runtime.p4info import P4InfoField, PacketHeader
from p4reduce_switch.p4runtime.packets import PacketCodec
from p4rt_client import INSERT, Builder, Client, config, exact
from switch_peer import ethernet, eventually

if TYPE_CHECKING:
    from p4rt_fixtures import Target

pytest_plugins = ("p4rt_fixtures",)

DST = 0x020000000002
EXACT, PUNT = "ingress.exact_table", "ingress.punt"


def metadata(*values: bytes) -> list[Any]:
    return [p4rt.PacketMetadata(metadata_id=i, value=v) for i, v in enumerate(values, start=1)]


def packet_out(payload: bytes, *values: bytes) -> Any:
    return p4rt.PacketOut(payload=payload, metadata=metadata(*values))


def punt_all(client: Client, build: Builder, reason: int = 0xABC) -> None:
    client.write((INSERT, build.entry(EXACT, [exact(1, DST), exact(2, 1)], (PUNT, reason, 0))))


def stream_error(client: Client) -> Any:
    message = client.next()
    assert message.WhichOneof("update") == "error", message
    return message.error


def test_packet_in(features: Client, build: Builder, target: Target) -> None:
    punt_all(features, build)
    left = target.plug(1)
    left.send(ethernet(b"to the controller"))
    packet = features.next().packet
    assert packet == p4rt.PacketIn(
        payload=ethernet(b"to the controller"), metadata=metadata(b"\x01", b"\x0a\xbc", b"\x00")
    )


def test_packet_ins_keep_their_order(features: Client, build: Builder, target: Target) -> None:
    punt_all(features, build)
    left = target.plug(1)
    for i in range(200):
        left.send(ethernet(bytes([i])))
    assert [features.next().packet.payload for _ in range(200)] == [
        ethernet(bytes([i])) for i in range(200)
    ]


def test_only_primaries_get_packet_ins(features: Client, build: Builder, target: Target) -> None:
    backup = target.client(election_id=0)
    backup.arbitrate()
    backup.next()
    watchman = target.client()
    watchman.arbitrate(role={"name": "watchman"})
    watchman.next()
    punt_all(features, build)
    target.plug(1).send(ethernet(b"x"))
    assert features.next().packet.payload == ethernet(b"x")
    assert watchman.next().packet.payload == ethernet(b"x")
    assert backup.received.empty()


def test_packet_ins_without_a_controller_are_counted(
    features: Client, build: Builder, target: Target
) -> None:
    punt_all(features, build)
    backup = target.client(election_id=0)
    backup.arbitrate()
    backup.next()
    features.close()
    assert backup.next().arbitration.status.code == code_pb2.NOT_FOUND  # nobody is primary
    target.plug(1).send(ethernet(b"x"))
    eventually(
        lambda: target.dataplane.counts()["switch"]["packet_ins_dropped"] == 1, "count of the drop"
    )


def test_packet_out(features: Client, target: Target) -> None:
    right = target.plug(2)
    features.send(packet=packet_out(ethernet(b"down"), b"\x02", b"\x00"))
    assert right.receive() == ethernet(b"down")
    # Not canonical, but the same value; and in any order.
    out = packet_out(ethernet(b"down"), b"\x00\x00\x02", b"\x00\x00")
    out.metadata.reverse()
    features.send(packet=out)
    assert right.receive() == ethernet(b"down")


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([b"\x02"], "is missing: '_pad'"),
        ([], "is missing: 'egress_port', '_pad'"),
        ([b"\x02\x00", b"\x00"], "'egress_port' (id 1): value 0x200 takes 10 bits"),
        ([b"", b"\x00"], "byte string is empty"),
        ([b"\x02", b"\x00", b"\x00"], "metadata id 3 is not in the P4Info"),
    ],
)
def test_wrong_packet_out_metadata(
    features: Client, target: Target, values: list[bytes], complaint: str
) -> None:
    right = target.plug(2)
    out = packet_out(ethernet(b"wrong"), *values)
    features.send(packet=out)
    error = stream_error(features)
    assert error.canonical_code == code_pb2.INVALID_ARGUMENT
    assert complaint in error.message
    assert error.packet_out.packet_out == out
    right.expect_nothing()
    features.send(packet=packet_out(ethernet(b"right"), b"\x02", b"\x00"))
    assert right.receive() == ethernet(b"right")


def test_doubled_packet_out_metadata(features: Client) -> None:
    out = packet_out(ethernet(), b"\x02", b"\x00")
    out.metadata.extend(metadata(b"\x02"))
    features.send(packet=out)
    assert "'egress_port' is given more than once" in stream_error(features).message


def test_packet_out_by_a_backup_is_refused(features: Client, target: Target) -> None:
    backup = target.client(election_id=0)
    backup.arbitrate()
    backup.next()
    right = target.plug(2)
    backup.send(packet=packet_out(ethernet(), b"\x02", b"\x00"))
    assert stream_error(backup).canonical_code == code_pb2.PERMISSION_DENIED
    stranger = target.client()
    stranger.open_stream()
    stranger.send(packet=packet_out(ethernet(), b"\x02", b"\x00"))
    assert stream_error(stranger).canonical_code == code_pb2.PERMISSION_DENIED
    right.expect_nothing()


def test_packet_out_without_a_pipeline(primary: Client) -> None:
    primary.send(packet=packet_out(ethernet()))
    assert stream_error(primary).canonical_code == code_pb2.FAILED_PRECONDITION


def test_packet_out_that_is_too_long(features: Client) -> None:
    features.send(packet=packet_out(bytes(2047), b"\x02", b"\x00"))
    error = stream_error(features)
    assert error.canonical_code == code_pb2.INVALID_ARGUMENT
    assert "2049 bytes" in error.message


def test_other_stream_messages_are_answered(features: Client) -> None:
    features.send(digest_ack={"digest_id": 5})
    error = stream_error(features)
    assert error.canonical_code == code_pb2.INVALID_ARGUMENT
    assert error.digest_list_ack.digest_list_ack.digest_id == 5
    features.send(other={"type_url": "x"})
    assert stream_error(features).canonical_code == code_pb2.UNIMPLEMENTED


def test_header_of_any_widths() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(50):
        widths = [rng.randrange(1, 70) for _ in range(rng.randrange(1, 8))]
        codec = PacketCodec(
            PacketHeader(tuple(P4InfoField(i, f"f{i}", w) for i, w in enumerate(widths, start=1)))
        )
        values = [rng.randrange(1 << w) for w in widths]
        bits = "".join(f"{v:0{w}b}" for v, w in zip(values, widths, strict=True))
        bits += "0" * (-len(bits) % 8)
        header = int(bits, 2).to_bytes(len(bits) // 8, "big")
        packet = codec.packet_in(header + b"payload").packet
        assert packet.payload == b"payload"
        assert [int.from_bytes(m.value, "big") for m in packet.metadata] == values
        assert codec.packet_out(b"payload", packet.metadata) == header + b"payload"


def test_no_header_is_an_empty_one() -> None:
    codec = PacketCodec(PacketHeader(()))
    assert codec.packet_out(b"raw", []) == b"raw"
    assert codec.packet_in(b"raw").packet == p4rt.PacketIn(payload=b"raw")


def test_a_frame_shorter_than_the_header() -> None:
    assert PacketCodec(PacketHeader((P4InfoField(1, "f", 17),))).packet_in(b"\x00\x00") is None


def test_headers_with_strings(
    primary: Client, build: Builder, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    """The program runs, although nobody can read its packets: strings have no width in P4Info."""
    message = config("p4rt_features")
    for header in message.p4info.controller_packet_metadata:
        header.metadata[0].bitwidth = 0
    primary.set_config(message)
    primary.send(packet=packet_out(ethernet(b"down"), b"port", b"\x00"))
    error = stream_error(primary)
    assert error.canonical_code == code_pb2.UNIMPLEMENTED
    assert "translated to strings" in error.message
    punt_all(primary, build)
    target.plug(1).send(ethernet(b"up"))
    eventually(lambda: "a packet-in was dropped" in caplog.text, "the warning")
    assert primary.received.empty()
