# SPDX-License-Identifier: Apache-2.0
"""Set- and GetForwardingPipelineConfig, Capabilities."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4rt_client import INSERT, Builder, Client, config, device_config, lpm

if TYPE_CHECKING:
    from p4rt_fixtures import Target

pytest_plugins = ("p4rt_fixtures",)


def refusal(client: Client, message: Any, action: str = "VERIFY_AND_COMMIT") -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        client.set_config(message, action)
    return caught.value.code().name, caught.value.details()


def src_entry(build: Builder, port: int = 1) -> Any:
    return build.entry("ingress.lpm_table", [lpm(1, 1 << 40, 8)], ("ingress.forward", port))


def test_without_a_pipeline(primary: Client, build: Builder) -> None:
    assert not primary.get_config().HasField("config")
    for call in (
        lambda: primary.write((INSERT, src_entry(build))),
        lambda: primary.read(src_entry(build)),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "SetForwardingPipelineConfig first" in caught.value.details()


def test_what_is_set_can_be_got(primary: Client) -> None:
    message = config("p4rt_features", cookie=0xC00C1E)
    primary.set_config(message)
    assert primary.get_config().config == message
    assert primary.get_config("COOKIE_ONLY").config == p4rt.ForwardingPipelineConfig(
        cookie=message.cookie
    )
    assert primary.get_config("P4INFO_AND_COOKIE").config == p4rt.ForwardingPipelineConfig(
        p4info=message.p4info, cookie=message.cookie
    )
    assert primary.get_config("DEVICE_CONFIG_AND_COOKIE").config == p4rt.ForwardingPipelineConfig(
        p4_device_config=message.p4_device_config, cookie=message.cookie
    )


def test_no_cookie_is_not_a_cookie_of_zero(primary: Client) -> None:
    primary.set_config(config("p4rt_features"))
    assert not primary.get_config().config.HasField("cookie")
    primary.set_config(config("p4rt_features", cookie=0))
    assert primary.get_config().config.HasField("cookie")


def test_commit_clears_the_forwarding_state(features: Client, build: Builder) -> None:
    features.write((INSERT, src_entry(build)))
    assert len(features.read(build.entry("ingress.lpm_table"))) == 1
    features.set_config(config("p4rt_features"))
    assert features.read(build.entry("ingress.lpm_table")) == []


def test_verify_changes_nothing(features: Client, build: Builder) -> None:
    features.write((INSERT, src_entry(build)))
    features.set_config(config("p4rt_match_kinds"), "VERIFY")
    assert features.get_config().config == config("p4rt_features")
    assert len(features.read(build.entry("ingress.lpm_table"))) == 1


def test_save_then_commit(features: Client, target: Target, build: Builder) -> None:
    other = Builder("p4rt_match_kinds")
    left, right = target.plug(1), target.plug(2)
    frame = bytes(6) + (1 << 40).to_bytes(6, "big") + b"\0\1" + bytes(46)
    features.write((INSERT, src_entry(build, port=2)))
    features.set_config(config("p4rt_match_kinds", cookie=2), "VERIFY_AND_SAVE")
    # Packets continue as before; reads and writes are about the new program.
    left.send(frame)
    assert right.receive() == frame
    assert features.get_config("COOKIE_ONLY").config.cookie.cookie == 2
    entry = other.entry(
        "ingress.range_table",
        [p4rt.FieldMatch(field_id=1, range={"low": b"\x01", "high": b"\x02"})],
        ("ingress.forward", 1),
        priority=1,
    )
    features.write((INSERT, entry))
    features.set_config(None, "COMMIT")
    left.send(frame)
    assert left.receive() == frame  # the new program's entry sends it back
    assert features.read(other.entry("ingress.range_table")) == [entry]
    assert refusal(features, None, "COMMIT")[0] == "NOT_FOUND"


def test_commit_takes_no_config(features: Client) -> None:
    code, text = refusal(features, config("p4rt_features"), "COMMIT")
    assert code == "INVALID_ARGUMENT"
    assert "takes none" in text


def test_unspecified_action(features: Client) -> None:
    assert refusal(features, config("p4rt_features"), "UNSPECIFIED")[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("action", ["VERIFY", "VERIFY_AND_SAVE", "VERIFY_AND_COMMIT"])
def test_a_config_must_be_complete(primary: Client, action: str) -> None:
    whole = config("p4rt_features")
    for message, complaint in (
        (None, "needs a config"),
        (p4rt.ForwardingPipelineConfig(p4info=whole.p4info), "p4_device_config is empty"),
        (
            p4rt.ForwardingPipelineConfig(p4_device_config=whole.p4_device_config),
            "p4info is missing",
        ),
    ):
        code, text = refusal(primary, message, action)
        assert code == "INVALID_ARGUMENT"
        assert complaint in text
    assert not primary.get_config().HasField("config")


def test_a_program_that_is_no_program_is_refused(features: Client) -> None:
    before = features.get_config().config
    for garbage in (b"not JSON", b"{}", b"[1, 2]", b"\xff\xfe"):
        message = config("p4rt_features")
        message.p4_device_config = garbage
        code, text = refusal(features, message)
        assert code == "INVALID_ARGUMENT", garbage
        assert text.startswith("p4_device_config: ")
    assert features.get_config().config == before


def rename_table(message: Any) -> None:
    message.p4info.tables[0].preamble.name = "ingress.exakt_table"


def widen_key(message: Any) -> None:
    message.p4info.tables[0].match_fields[0].bitwidth = 49


def change_kind(message: Any) -> None:
    message.p4info.tables[0].match_fields[0].match_type = 4  # TERNARY


def swap_fields(message: Any) -> None:
    fields = message.p4info.tables[0].match_fields
    fields[0].name, fields[1].name = fields[1].name, fields[0].name


def drop_field(message: Any) -> None:
    del message.p4info.tables[0].match_fields[1]


def widen_parameter(message: Any) -> None:
    next(a for a in message.p4info.actions if a.preamble.name == "ingress.punt").params[
        0
    ].bitwidth = 13


def resize_counter(message: Any) -> None:
    message.p4info.counters[0].size = 9


def forget_direct_counter(message: Any) -> None:
    del message.p4info.tables[0].direct_resource_ids[:]


def rename_register(message: Any) -> None:
    message.p4info.registers[0].preamble.name = "ingress.sean"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (rename_table, "table 'ingress.exakt_table' is not in the program"),
        (
            widen_key,
            "dst: exact bit<49>, port: exact bit<9>) in the P4Info and (dst: exact bit<48>",
        ),
        (change_kind, "dst: ternary bit<48>"),
        (swap_fields, "(port: exact bit<48>, dst: exact bit<9>) in the P4Info"),
        (drop_field, "the key of table 'ingress.exact_table' is (dst: exact bit<48>) in"),
        (widen_parameter, "action 'ingress.punt' are (bit<13> reason, bit<9> copy_of)"),
        (resize_counter, "counter 'ingress.by_port' has 9 cells in the P4Info and 8"),
        (forget_direct_counter, "'ingress.exact_table' has a direct counter only in the program"),
        (rename_register, "register 'ingress.sean' is not in the program"),
    ],
)
def test_a_p4info_of_another_program_is_refused(
    primary: Client, change: Callable[[Any], None], complaint: str
) -> None:
    message = config("p4rt_features")
    change(message)
    code, text = refusal(primary, message)
    assert code == "INVALID_ARGUMENT"
    assert "not of the same program" in text
    assert complaint in text


def test_a_p4info_with_colliding_ids_is_refused(primary: Client) -> None:
    message = config("p4rt_features")
    message.p4info.tables[1].preamble.id = message.p4info.tables[0].preamble.id
    code, text = refusal(primary, message)
    assert code == "INVALID_ARGUMENT"
    assert "is used by 'ingress.exact_table' and" in text


def test_an_unknown_device(primary: Client) -> None:
    primary.device_id = 3
    calls: list[Callable[[], object]] = [
        lambda: primary.set_config(config("p4rt_features")),
        primary.get_config,
        primary.write,
        primary.read,
    ]
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        assert "device_id 3" in caught.value.details()


def test_a_config_of_several_megabytes(primary: Client) -> None:
    message = config("p4rt_features")
    padded = json.loads(device_config("p4rt_features"))
    message.p4_device_config = json.dumps(padded).encode() + b" " * (6 << 20)
    primary.set_config(message)
    assert primary.read(p4rt.CounterEntry())


def test_capabilities(primary: Client) -> None:
    reply = primary.stub.Capabilities(p4rt.CapabilitiesRequest(), timeout=120)
    assert reply.p4runtime_api_version == "1.4.1"


def test_capabilities_of_a_device(primary: Client) -> None:
    request = p4rt.CapabilitiesRequest()
    if "device_id" not in request.DESCRIPTOR.fields_by_name:
        pytest.skip("these stubs have no device in the request")
    request.device_id = 1
    assert primary.stub.Capabilities(request, timeout=120).p4runtime_api_version == "1.4.1"
    request.device_id = 2
    with pytest.raises(grpc.RpcError, match="device_id 2 is not served here") as caught:
        primary.stub.Capabilities(request, timeout=120)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_role_has_a_name_and_no_number(features: Client, target: Target) -> None:
    """Before version 1.3 a role was a number, which must not be taken for the default role."""
    for call in (
        lambda: features.write(role_id=7),
        lambda: features.set_config(None, "COMMIT", role_id=7),
    ):
        with pytest.raises(grpc.RpcError, match="role_id 7") as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    other = target.client(election_id=3)
    other.arbitrate(role={"id": 7})
    ended = other.next()
    assert ended.code() is grpc.StatusCode.UNIMPLEMENTED


def test_ports_are_told_with_the_capabilities(primary: Client) -> None:
    """P4Runtime has no list of them."""
    _, call = primary.stub.Capabilities.with_call(p4rt.CapabilitiesRequest(), timeout=120)
    told = dict(call.trailing_metadata())
    assert told["p4reduce-ports"] == "1,2"
    assert told["p4reduce-ports-without-carrier"] == ""
