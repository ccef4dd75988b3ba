# SPDX-License-Identifier: Apache-2.0
"""Action profile members and groups, and table entries that refer to them, by P4Runtime.

P4Runtime 1.4.1, "ActionProfileMember & ActionProfileGroup". The tables of a selector are programmed
either by members and groups or by one-shot action sets, as in BMv2's server.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import exhausted, invalid, unsupported
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.entities.common import find, refuse_unsupported, selected
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.p4runtime.entities.table_entries import decode_table_action, encode_action
from p4reduce_switch.p4runtime.p4info import P4Info, ProfileSpec, TableSpec
from p4reduce_switch.state.profiles import ActionProfile, ProfileGroup, ProfileMember
from p4reduce_switch.state.targets import ActionSet, GroupRef, MemberRef, Target, WeightedAction

_Update = p4runtime_pb2.Update
_MAX_WEIGHT = 1 << 16
"""Of all members of a group together: each unit of weight is a choice in a list."""
_HASH, _SUM_OF_WEIGHTS, _SUM_OF_MEMBERS = 1, 1, 2
"""Of `ActionSelectionMode` and `SizeSemantics`; older stubs do not have them."""


def _table_of(config: ForwardingConfig, spec: ProfileSpec) -> TableSpec:
    """One of the tables of a profile; all have the same actions."""
    return next(t for t in config.p4info.tables.values() if t.profile == spec)


# -- Table entries -------------------------------------------------------------------------------


def decode_target(table: TableSpec, message: Any) -> Target:
    """Return what an entry of an indirect table refers to, from a `TableAction`.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT and others, as for actions.
    """
    profile = table.profile
    assert profile is not None
    kind = message.WhichOneof("type")
    if kind == "action_profile_member_id":
        return MemberRef(message.action_profile_member_id)
    if not profile.has_selector or kind not in (
        "action_profile_group_id",
        "action_profile_action_set",
    ):
        wanted = ["action_profile_member_id"]
        if profile.has_selector:
            wanted += ["action_profile_group_id", "action_profile_action_set"]
        raise invalid(
            f"table '{table.name}' is implemented by '{profile.name}' and takes "
            f"{' or '.join(wanted)}, but the entry gives {kind or 'nothing'}"
        )
    if kind == "action_profile_group_id":
        return GroupRef(message.action_profile_group_id)
    return _decode_set(table, profile, message.action_profile_action_set)


def _decode_set(table: TableSpec, profile: ProfileSpec, message: Any) -> ActionSet:
    where = f"the action set of an entry of table '{table.name}'"
    if not message.action_profile_actions:
        raise unsupported(f"{where} is empty: not supported, as in BMv2")
    refuse_unsupported(message, ("group_action",), where)
    size_semantics = _decode_mode(profile, message, where)
    parts = []
    for item in message.action_profile_actions:
        watches = _decode_watch(item, where)
        _check_weight(profile, item.weight, where)
        action, args = decode_table_action(table, item.action, as_default=False)
        parts.append(WeightedAction(action, args, item.weight, watches))
    weights = [part.weight for part in parts]
    total = len(weights) if profile.counts_members else sum(weights)
    if profile.max_group_size and total > profile.max_group_size:
        raise invalid(
            f"the {'members' if profile.counts_members else 'weights'} of {where} add up to "
            f"{total}; at most {profile.max_group_size} is allowed (max_group_size of the P4Info)"
        )
    _check_choices(weights, where)
    return ActionSet(tuple(parts), size_semantics)


def _decode_mode(profile: ProfileSpec, message: Any, where: str) -> int:
    """The size semantics of an action set; 0 if it leaves them and the mode to the selector.

    A server must also take what its selector does by default, spelt out.
    """
    default = _SUM_OF_MEMBERS if profile.counts_members else _SUM_OF_WEIGHTS
    fields = ("action_selection_mode", "size_semantics")
    if tuple(getattr(message, field, 0) for field in fields) == (_HASH, default):
        return default
    refuse_unsupported(message, fields, where)
    return 0


def encode_target(p4info: P4Info, target: Target, message: Any) -> None:
    """Fill a `TableAction` as it was written."""
    if isinstance(target, MemberRef):
        message.action_profile_member_id = target.id
    elif isinstance(target, GroupRef):
        message.action_profile_group_id = target.id
    else:
        for part in target.actions:
            item = message.action_profile_action_set.action_profile_actions.add(weight=part.weight)
            encode_action(p4info, part.action, part.args, item)
            if part.watches:
                item.watch_port = b""
        if target.size_semantics:
            message.action_profile_action_set.action_selection_mode = _HASH
            message.action_profile_action_set.size_semantics = target.size_semantics


def _check_weight(profile: ProfileSpec, weight: int, where: str) -> None:
    most = profile.max_member_weight or _MAX_WEIGHT
    if not 0 < weight <= most:
        raise invalid(f"weight {weight} in {where}: it must be 1 to {most}")


def _check_choices(weights: Iterable[int], where: str) -> None:
    if sum(weights) > _MAX_WEIGHT:
        raise exhausted(f"the weights of {where} add up to {sum(weights)}, above {_MAX_WEIGHT}")


def _decode_watch(message: Any, where: str) -> bool:
    """Whether a watch port is given that is empty, which is none; others are not supported."""
    kind = message.WhichOneof("watch_kind")
    if kind is not None and (kind != "watch_port" or message.watch_port):
        raise unsupported(f"{kind} of {where} is set, but watch ports are not supported")
    return kind is not None


# -- Members -------------------------------------------------------------------------------------


def plan_member(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """Return the operation of an `ActionProfileMember` update."""
    spec, profile = _profile(config, message)
    member_id = message.member_id
    if member_id == 0:
        raise invalid(f"member_id of '{spec.name}' is 0; ids start at 1")
    if update_type == _Update.DELETE:
        return lambda: profile.delete_member(member_id)
    if not message.HasField("action"):
        raise invalid(f"member {member_id} of '{spec.name}' has no action")
    table = _table_of(config, spec)
    action, args = decode_table_action(table, message.action, as_default=False)
    change = profile.insert_member if update_type == _Update.INSERT else profile.modify_member
    return lambda: change(member_id, action, args)


def query_members(config: ForwardingConfig, message: Any) -> Query:
    """Query one member or all, of one profile or of all."""

    def fill(member: ProfileMember, out: Any) -> None:
        out.member_id = member.id
        encode_action(config.p4info, member.action, member.args, out)

    return _query(
        config,
        message,
        "action_profile_member",
        message.member_id,
        lambda profile: (profile.members, profile.member),
        fill,
    )


# -- Groups --------------------------------------------------------------------------------------


def plan_group(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """Return the operation of an `ActionProfileGroup` update."""
    spec, profile = _profile(config, message)
    if not spec.has_selector:
        raise invalid(f"'{spec.name}' is an action profile without a selector: it has no groups")
    group_id = message.group_id
    if group_id == 0:
        raise invalid(f"group_id of '{spec.name}' is 0; ids start at 1")
    if update_type == _Update.DELETE:
        return lambda: profile.delete_group(group_id)
    where = f"group {group_id} of '{spec.name}'"
    weights, watching = _decode_weights(spec, message, where)
    max_size = message.max_size
    _check_max_size(spec, max_size, where)
    total = len(weights) if spec.counts_members else sum(weights.values())
    if max_size and total > max_size:
        raise exhausted(
            f"the {'members' if spec.counts_members else 'weights'} of {where} add up to {total}; "
            f"at most {max_size} is allowed"
        )
    _check_choices(weights.values(), where)
    if update_type == _Update.INSERT:
        return lambda: profile.insert_group(group_id, weights, max_size, watching)

    def modify() -> None:
        group = profile.group(group_id)
        if group.max_size != max_size:
            raise invalid(f"max_size of {where} cannot change from {group.max_size} to {max_size}")
        profile.modify_group(group_id, weights, watching)

    return modify


def _check_max_size(spec: ProfileSpec, max_size: int, where: str) -> None:
    """The specification's "Rules on Setting `max_size`"."""
    if spec.max_group_size:
        if not 0 < max_size <= spec.max_group_size:
            raise invalid(
                f"max_size {max_size} of {where} is not within 1 to {spec.max_group_size} "
                "(max_group_size of the P4Info)"
            )
    elif max_size < 0:
        raise invalid(f"max_size {max_size} of {where} is negative")
    elif max_size > _MAX_WEIGHT:
        raise exhausted(f"max_size {max_size} of {where} is above {_MAX_WEIGHT}")


def _decode_weights(
    spec: ProfileSpec, message: Any, where: str
) -> tuple[dict[int, int], frozenset[int]]:
    """The weights of a group by member, and the members that give an empty watch port."""
    weights: dict[int, int] = {}
    watching = set()
    for member in message.members:
        if _decode_watch(member, where):
            watching.add(member.member_id)
        _check_weight(spec, member.weight, where)
        if member.member_id in weights:
            raise invalid(f"member {member.member_id} is in {where} twice; use its weight")
        weights[member.member_id] = member.weight
    return weights, frozenset(watching)


def query_groups(config: ForwardingConfig, message: Any) -> Query:
    """Query one group or all, of one profile or of all."""
    return _query(
        config,
        message,
        "action_profile_group",
        message.group_id,
        lambda profile: (profile.groups, profile.group),
        _fill_group,
    )


def _fill_group(group: ProfileGroup, out: Any) -> None:
    out.group_id = group.id
    out.max_size = group.max_size
    for member_id, weight in group.weights.items():
        member = out.members.add(member_id=member_id, weight=weight)
        if member_id in group.watching:
            member.watch_port = b""


# -- Both ------------------------------------------------------------------------------------------

_Objects = Callable[["ActionProfile"], tuple[Mapping[int, Any], Callable[[int], Any]]]
"""The members or groups of a profile, and what finds one by its id."""


def _profile(config: ForwardingConfig, message: Any) -> tuple[ProfileSpec, ActionProfile]:
    """The profile of a member or group."""
    spec = find(config.p4info.profiles, message.action_profile_id, "action profile")
    return spec, config.pipeline.profiles[spec.name]


def _query(
    config: ForwardingConfig,
    message: Any,
    field: str,
    wanted: int,
    objects: _Objects,
    fill: Callable[[Any, Any], None],
) -> Query:
    """The member or group of the id `wanted`, or all for id 0."""
    if wanted and not message.action_profile_id:
        raise invalid(f"id {wanted} is given, but no action_profile_id that it belongs to")
    specs = selected(config.p4info.profiles, message.action_profile_id, "action profile")

    def snapshot() -> list[Any]:
        rows = []
        for spec in specs:
            every, one = objects(config.pipeline.profiles[spec.name])
            rows += [(spec.id, copy.copy(o)) for o in ([one(wanted)] if wanted else every.values())]
        return rows

    def encode(row: Any) -> Any:
        entity = p4runtime_pb2.Entity()
        out = getattr(entity, field)
        out.action_profile_id = row[0]
        fill(row[1], out)
        return entity

    return Query(snapshot, encode)
