# SPDX-License-Identifier: Apache-2.0
"""P4Runtime requests that no controller would send: each is refused or done, and none harms."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2 as p4rt
from p4rt_client import (
    DELETE,
    INSERT,
    MODIFY,
    Builder,
    Client,
    config,
    entity,
    exact,
    load_p4info,
    lpm,
    ternary,
    uint128,
)
from switch_peer import DEADLINE_S, ethernet

if TYPE_CHECKING:
    from p4rt_fixtures import Target

pytest_plugins = ("p4rt_fixtures",)
pytestmark = pytest.mark.fuzz

PROGRAM = "p4rt_features"
NUMBERS = (0, 1, 2, 3, 255, 256, 511, 512, 65535, 65536, 2**31 - 1)
BYTES = (b"", b"\0", b"\1", b"\0\0\1", b"\xff", b"\xff" * 4, b"\xff" * 8, b"\x7f" * 300)
BROKEN = {"INTERNAL", "UNKNOWN", "DATA_LOSS"}
EXACT, FORWARD = "ingress.exact_table", "ingress.forward"
DST = 0x020000000002


def is_repeated(value: Any) -> bool:
    """Whether a field's value is that of a repeated one, or a map, which is one too.

    protobuf 7 has no `label` to tell.
    """
    return isinstance(value, MutableSequence | MutableMapping)


class Hostile:
    """Makes messages of a kind: fields left out, repeated, of a wrong size, or just right."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        p4info = load_p4info(PROGRAM)
        self._ids = [0, 1, 0xFFFFFFFF]
        for kind in p4info.DESCRIPTOR.fields:
            if kind.message_type is not None and is_repeated(getattr(p4info, kind.name)):
                for item in getattr(p4info, kind.name):
                    if "preamble" in item.DESCRIPTOR.fields_by_name:
                        self._ids.append(item.preamble.id)

    def fill(self, message: Any, depth: int = 0) -> Any:
        fields = message.DESCRIPTOR.fields
        for field in fields:
            if self.rng.random() < 0.35 + 0.08 * depth:
                continue
            if is_repeated(getattr(message, field.name)):
                for _ in range(self.rng.choice((1, 1, 2, 5))):
                    self._add(getattr(message, field.name), field, depth)
            elif field.message_type is not None:
                inner = getattr(message, field.name)
                inner.SetInParent()
                if depth < 8:
                    self.fill(inner, depth + 1)
            else:
                setattr(message, field.name, self._value(field))
        return message

    def change(self, message: Any) -> Any:
        """Exchange one value of a message, wherever it is."""
        where, field, index = self.rng.choice(list(leaves(message)))
        value = self._value(field)
        if index is None:
            setattr(where, field.name, value)
        else:
            getattr(where, field.name)[index] = value
        return message

    def _add(self, container: Any, field: Any, depth: int) -> None:
        if field.message_type is None:
            container.append(self._value(field))
        elif depth < 8 and not field.message_type.GetOptions().map_entry:
            self.fill(container.add(), depth + 1)

    def _value(self, field: Any) -> Any:
        if field.name.endswith("_id") and self.rng.random() < 0.8:
            return self.rng.choice(self._ids if self.rng.random() < 0.7 else range(1, 6))
        if field.type == field.TYPE_BYTES:
            return self.rng.choice(BYTES)
        if field.type == field.TYPE_STRING:
            return self.rng.choice(("", "x", "é" * 50, "a\0b"))
        if field.type == field.TYPE_BOOL:
            return self.rng.random() < 0.5
        if field.enum_type is not None:
            return self.rng.choice(range(-1, 6))
        if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
            return self.rng.choice((0.0, -1.0, 1e300, float("nan"), float("inf")))
        number = self.rng.choice(NUMBERS)
        signed = field.type in (field.TYPE_INT32, field.TYPE_INT64)
        return -number if signed and self.rng.random() < 0.3 else number


def leaves(message: Any) -> Iterator[tuple[Any, Any, int | None]]:
    """The values in a message: whose, of which field, and the index where that is repeated."""
    for field, value in message.ListFields():
        repeated = is_repeated(value)
        for index, item in enumerate(value if repeated else [value]):
            if field.message_type is None:
                yield message, field, index if repeated else None
            else:
                yield from leaves(item)


def good_updates(build: Builder) -> list[Any]:
    """One of each kind; a fuzz test makes them nearly right."""
    forward, note = (FORWARD, 2), ("ingress.note", 5)
    lpm_entry = build.entry("ingress.lpm_table", [lpm(1, 0x0A000000, 8)], note)
    ternary_entry = build.entry(
        "ingress.ternary_table", [ternary(1, 2, 3), ternary(2, 0x800, 0xFFFF)], forward, priority=7
    )
    return [
        build.entry(EXACT, [exact(1, DST), exact(2, 1)], forward),
        lpm_entry,
        ternary_entry,
        p4rt.MulticastGroupEntry(
            multicast_group_id=1, replicas=[{"egress_port": 1, "instance": 1}]
        ),
        p4rt.CloneSessionEntry(session_id=1, replicas=[{"egress_port": 1, "instance": 1}]),
        p4rt.CounterEntry(
            counter_id=build.id("ingress.by_port"),
            index={"index": 1},
            data={"packet_count": 1, "byte_count": 2},
        ),
    ]


@pytest.fixture
def hostile(fuzz: Any) -> Hostile:
    return Hostile(fuzz.random)


@pytest.fixture
def sound(target: Target, features: Client, build: Builder) -> Callable[[], None]:
    """Asserts that the switch still does what it is told, and that frames still pass."""
    one, two = target.plug(1), target.plug(2)

    def check() -> None:
        features.set_config(config(PROGRAM))
        entry = build.entry(EXACT, [exact(1, DST), exact(2, 1)], (FORWARD, 2))
        features.write((INSERT, entry))
        frame = ethernet(b"still here")
        one.send(frame)
        assert two.receive() == frame

    return check


def verdict(call: Callable[[], Any], request: Any) -> str:
    """Assert that a call is answered, and that nothing broke about it; return what is said."""
    try:
        call()
    except grpc.RpcError as error:
        codes, details = codes_of(error), error.details()
    else:
        return "OK"
    assert not codes & BROKEN, f"{codes} {details}: {request}"
    return min(codes)


def codes_of(error: grpc.RpcError) -> set[str]:
    """The status, or of a batch (UNKNOWN as a whole, section 12.3) that of each element."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            elements = [p4rt.Error.FromString(detail.value) for detail in status.details]
            return {code_pb2.Code.Name(element.canonical_code) for element in elements}
    return {error.code().name}


def test_writes(features: Client, hostile: Hostile, fuzz: Any, sound: Any) -> None:
    for _ in fuzz.rounds(400):
        request = p4rt.WriteRequest()
        for _ in range(hostile.rng.choice((1, 3))):
            update = request.updates.add(type=hostile.rng.choice(range(4)))
            kind = hostile.rng.choice(p4rt.Entity.DESCRIPTOR.fields)
            hostile.fill(getattr(update.entity, kind.name)).SetInParent()
        request.device_id = features.device_id
        request.election_id.CopyFrom(uint128(features.election_id))
        verdict(lambda r=request: features.stub.Write(r, timeout=DEADLINE_S), request)
    sound()


def test_writes_that_are_nearly_right(
    features: Client, build: Builder, hostile: Hostile, fuzz: Any, sound: Any
) -> None:
    goods = good_updates(build)
    outcomes = Counter[str]()
    for _ in fuzz.rounds(400):
        request = p4rt.WriteRequest(
            device_id=features.device_id, election_id=uint128(features.election_id)
        )
        entry = entity(hostile.rng.choice(goods))
        if hostile.rng.random() < 0.9:
            hostile.change(entry)
        request.updates.add(type=hostile.rng.choice((INSERT, MODIFY, DELETE)), entity=entry)
        outcomes[
            verdict(lambda r=request: features.stub.Write(r, timeout=DEADLINE_S), request)
        ] += 1
    assert outcomes["OK"] > 0, outcomes
    assert len(outcomes) > 3, f"it does not get far in: {outcomes}"
    sound()


def test_reads(features: Client, hostile: Hostile, fuzz: Any, sound: Any) -> None:
    for _ in fuzz.rounds(300):
        request = p4rt.ReadRequest(device_id=features.device_id)
        kind = hostile.rng.choice(p4rt.Entity.DESCRIPTOR.fields)
        hostile.fill(getattr(request.entities.add(), kind.name)).SetInParent()
        verdict(lambda r=request: list(features.stub.Read(r, timeout=DEADLINE_S)), request)
    sound()


def test_anything_unary(features: Client, hostile: Hostile, fuzz: Any, sound: Any) -> None:
    """Wrong devices, roles, election ids, actions, atomicities."""
    for _ in fuzz.rounds(150):
        for call, request in (
            (features.stub.Write, hostile.fill(p4rt.WriteRequest())),
            (
                features.stub.SetForwardingPipelineConfig,
                hostile.fill(p4rt.SetForwardingPipelineConfigRequest()),
            ),
            (
                features.stub.GetForwardingPipelineConfig,
                hostile.fill(p4rt.GetForwardingPipelineConfigRequest()),
            ),
        ):
            verdict(lambda c=call, r=request: c(r, timeout=DEADLINE_S), request)
    sound()


def test_streams(target: Target, hostile: Hostile, fuzz: Any, sound: Any) -> None:
    """Each on a stream of its own, which may end: the others', and the primary, stay."""
    for number in fuzz.rounds(60):
        client = target.client()
        client.open_stream()
        for _ in range(3):
            kind = hostile.rng.choice(p4rt.StreamMessageRequest.DESCRIPTOR.fields)
            request = p4rt.StreamMessageRequest()
            inner = hostile.fill(getattr(request, kind.name))
            inner.SetInParent()
            if kind.name == "arbitration":
                inner.election_id.Clear()  # or it would be primary, and rightly so
            client.send(**{kind.name: inner})
        client.close()
        if number % 20 == 19:
            sound()
    sound()


def test_damaged_configs(features: Client, hostile: Hostile, fuzz: Any, sound: Any) -> None:
    """Bytes of the JSON, parts of the P4Info: refused with a reason, and the old one stays."""
    good = config(PROGRAM)
    for _ in fuzz.rounds(25):
        broken = p4rt.ForwardingPipelineConfig()
        broken.CopyFrom(good)
        if hostile.rng.random() < 0.5:
            broken.p4_device_config = damaged_json(hostile.rng, good.p4_device_config)
        else:
            damage_p4info(hostile.rng, broken.p4info)
        verdict(lambda b=broken: features.set_config(b), "a damaged config")
    sound()


def damaged_json(rng: random.Random, text: bytes) -> bytes:
    """Either bytes, or one of its values exchanged for another."""
    if rng.random() < 0.3:
        out = bytearray(text)
        for _ in range(rng.randrange(1, 6)):
            out[rng.randrange(len(out))] = rng.randrange(256)
        return bytes(out)
    root = json.loads(text)
    node: Any = root
    while True:
        if not isinstance(node, dict | list) or not node:
            return json.dumps(root).encode()
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        if rng.random() < 0.25 or not isinstance(node[key], dict | list) or not node[key]:
            node[key] = rng.choice((None, -1, 2**70, "", "nothing", [], {}, [[]], True, 0.5))
            return json.dumps(root).encode()
        node = node[key]


def damage_p4info(rng: random.Random, p4info: Any) -> None:
    kinds = [
        field.name
        for field in p4info.DESCRIPTOR.fields
        if is_repeated(items := getattr(p4info, field.name)) and len(items)
    ]
    items = getattr(p4info, rng.choice(kinds))
    match rng.randrange(4):
        case 0:
            del items[rng.randrange(len(items))]
        case 1:
            items.add().CopyFrom(rng.choice(items))
        case 2:
            rng.choice(items).preamble.id = rng.choice((0, 1, 0xFFFFFFFF))
        case 3:
            rng.choice(items).Clear()
