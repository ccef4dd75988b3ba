# SPDX-License-Identifier: Apache-2.0
"""Action profiles, digests, meters and idle timeouts: what is refused when a pipeline is set."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from p4reduce_switch.p4runtime.p4info import P4Info, P4InfoError
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.program.load_error import LoadError
from p4rt_client import load_p4info
from pipeline_programs import config

Edit = Callable[[Any], None]


def table(root: Any, name: str) -> Any:
    return next(t for p in root["pipelines"] for t in p["tables"] if t["name"] == name)


def unknown_hash(root: Any) -> None:
    root["pipelines"][0]["action_profiles"][0]["selector"]["algo"] = "crc7"


def default_of_indirect(root: Any) -> None:
    table(root, "I.picked")["default_entry"] = {"action_id": 0, "action_data": []}


def entries_of_indirect(root: Any) -> None:
    table(root, "I.picked")["entries"] = [{}]


def unknown_profile(root: Any) -> None:
    table(root, "I.picked")["action_profile"] = "I.other"


def digest_twice(root: Any) -> None:
    root["learn_lists"].append({**root["learn_lists"][0], "id": 9})


def digest_of_constant(root: Any) -> None:
    root["learn_lists"][0]["elements"][0] = {"type": "hexstr", "value": "0x1"}


def digest_unknown(root: Any) -> None:
    del root["learn_lists"][0]


def digest_in_egress(root: Any) -> None:
    root["pipelines"][0]["name"], root["pipelines"][1]["name"] = "egress", "ingress"


def three_rates(root: Any) -> None:
    root["meter_arrays"][0]["rate_count"] = 3


def meter_unknown(root: Any) -> None:
    root["meter_arrays"] = root["meter_arrays"][1:]


@pytest.mark.parametrize(
    ("program", "edit", "said"),
    [
        ("profiles", unknown_hash, "profiles.p4:23: hash algorithm 'crc7' is not supported"),
        ("profiles", default_of_indirect, "default action of indirect table 'I.picked' is not"),
        ("profiles", entries_of_indirect, "const entries of indirect table 'I.picked' is not"),
        ("profiles", unknown_profile, "there is no action profile 'I.other'"),
        ("digests", digest_twice, "digest 'learned_t' at several places is not supported"),
        ("digests", digest_of_constant, "digest 'learned_t' of a value that is not a field is not"),
        ("digests", digest_unknown, "there is no digest 1"),
        ("digests", digest_in_egress, "primitive 'generate_digest' in egress is not supported"),
        ("meters", three_rates, "meters.p4:15: meter 'I.by_packets' of 3 rates is not supported"),
        ("meters", meter_unknown, "there is no meter 'I.by_packets'"),
    ],
)
def test_refused_at_load(program: str, edit: Edit, said: str) -> None:
    root = json.loads(config(program))
    edit(root)
    with pytest.raises(LoadError) as caught:
        Pipeline(json.dumps(root))
    assert said in str(caught.value)


def spec(info: Any, name: str) -> Any:
    kinds = (info.tables, info.action_profiles, info.meters, info.direct_meters, info.digests)
    return next(item for kind in kinds for item in kind if item.preamble.name == name)


def other_profile(info: Any) -> None:
    spec(info, "I.first").implementation_id = spec(info, "I.balancer").preamble.id


def no_profile(info: Any) -> None:
    spec(info, "I.first").implementation_id = 0


def other_meter_size(info: Any) -> None:
    spec(info, "I.by_bytes").size = 5


def other_unit(info: Any) -> None:
    spec(info, "I.by_bytes").spec.unit = 2


def no_direct_meter(info: Any) -> None:
    spec(info, "I.measured").direct_resource_ids.pop()


def other_digest(info: Any) -> None:
    info.type_info.structs["seen_t"].members[0].type_spec.bitstring.bit.bitwidth = 15


def idle_too(info: Any) -> None:
    spec(info, "I.measured").idle_timeout_behavior = 1


@pytest.mark.parametrize(
    ("program", "edit", "said"),
    [
        ("profiles", other_profile, "of table 'I.first' is I.balancer in the P4Info and I.hops in"),
        ("profiles", no_profile, "of table 'I.first' is none in the P4Info and I.hops in"),
        ("meters", other_meter_size, "meter 'I.by_bytes' is not the same"),
        ("meters", other_unit, "meter 'I.by_bytes' is not the same"),
        ("meters", no_direct_meter, "the direct meter of table 'I.measured' is another one"),
        ("meters", idle_too, "table 'I.measured' has an idle timeout only in the P4Info"),
        ("digests", other_digest, "digest 'seen_t' is not the same"),
    ],
)
def test_p4info_of_another_program(program: str, edit: Edit, said: str) -> None:
    info = load_p4info(program)
    pipeline = Pipeline(config(program))
    assert P4Info.parse(info).differences(pipeline) == []
    edit(info)
    (difference,) = P4Info.parse(info).differences(pipeline)
    assert said in difference


def profile_missing(info: Any) -> None:
    spec(info, "I.first").implementation_id = 77


def same_id(info: Any) -> None:
    spec(info, "I.hops").preamble.id = spec(info, "I.balancer").preamble.id


def by_members(info: Any) -> None:
    spec(info, "I.balancer").sum_of_members.max_member_weight = 3


def single_rate(info: Any) -> None:
    spec(info, "I.by_bytes").spec.type = 1


def varbit_digest(info: Any) -> None:
    info.type_info.structs["seen_t"].members[0].type_spec.bitstring.varbit.max_bitwidth = 8


@pytest.mark.parametrize(
    ("program", "edit", "said"),
    [
        ("profiles", profile_missing, "refers to action profile 0x4d, which does not exist"),
        ("profiles", same_id, "is used by 'I.balancer' and 'I.hops'"),
        ("meters", single_rate, "is not of two rates and three colours"),
        ("digests", varbit_digest, "has a part that is not bit<> or int<>"),
    ],
)
def test_p4info_without_support(program: str, edit: Edit, said: str) -> None:
    info = load_p4info(program)
    edit(info)
    with pytest.raises(P4InfoError, match=said):
        P4Info.parse(info)


def test_a_selector_that_limits_members() -> None:
    """As in BMv2 it is taken; what is limited is how many members a group has."""
    info = load_p4info("profiles")
    by_members(info)
    profiles = {profile.name: profile for profile in P4Info.parse(info).profiles.values()}
    assert profiles["I.balancer"].counts_members
    assert not any(p.counts_members for name, p in profiles.items() if name != "I.balancer")
