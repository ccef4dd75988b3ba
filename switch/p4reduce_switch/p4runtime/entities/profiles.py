# SPDX-License-Identifier: Apache-2.0
"""Action profile members and groups, and table entries that refer to them, by P4Runtime.

P4Runtime 1.4.1, "ActionProfileMember & ActionProfileGroup". As in BMv2's server a group may leave
its max_size 0 also where the P4Info has a max_group_size, which then counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.p4runtime.entities.table_entries import decode_table_action, encode_action
from p4reduce_switch.p4runtime.p4info import names
from p4reduce_switch.state.profiles import InUse, ObjectExists, ProfileFull, UnknownObject
from p4reduce_switch.state.targets import ActionSet, GroupRef, MemberRef, WeightedAction

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig
    from p4reduce_switch.p4runtime.p4info import P4Info, ProfileSpec, TableSpec
    from p4reduce_switch.state.profiles import ActionProfile
    from p4reduce_switch.state.targets import Target

__all__ = [
    "decode_target",
    "encode_target",
    "plan_group",
    "plan_member",
    "profile_errors",
    "query_groups",
    "query_members",
]

_Update = p4runtime_pb2.Update
_MAX_WEIGHT = 1 << 16
"""Each unit of weight is a choice in a list."""


@contextmanager
def profile_errors() -> Iterator[None]:
    """Turn what profiles raise into P4Runtime's codes."""
    try:
        yield
    except UnknownObject as error:
        raise P4RuntimeError(code_pb2.NOT_FOUND, str(error)) from None
    except ObjectExists as error:
        raise P4RuntimeError(code_pb2.ALREADY_EXISTS, f"{error}; use MODIFY") from None
    except InUse as error:
        raise P4RuntimeError(code_pb2.FAILED_PRECONDITION, str(error)) from None
    except ProfileFull as error:
        raise P4RuntimeError(code_pb2.RESOURCE_EXHAUSTED, str(error)) from None


def _find(config: ForwardingConfig, profile_id: int) -> ProfileSpec:
    spec = config.p4info.profiles.get(profile_id)
    if spec is None:
        raise invalid(
            f"this pipeline has no action profile with id {profile_id:#x}; "
            f"its action profiles are {names(p.name for p in config.p4info.profiles.values())}"
        )
    return spec


def _table_of(config: ForwardingConfig, spec: ProfileSpec) -> TableSpec:
    """One of the tables of a profile; all have the same actions."""
    return next(t for t in config.p4info.tables.values() if t.profile == spec)


# -- Table entries -------------------------------------------------------------------------------


def decode_target(table: TableSpec, message: Any) -> Target:
    """What an entry of an indirect table refers to, of a `TableAction`.

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
        raise P4RuntimeError(code_pb2.UNIMPLEMENTED, f"{where} is empty: not supported, as in BMv2")
    parts = []
    for item in message.action_profile_actions:
        _check_watch(item, where)
        _check_weight(item.weight, where)
        action, args = decode_table_action(table, item.action, as_default=False)
        parts.append(WeightedAction(action, args, item.weight))
    total = len(parts) if profile.counts_members else sum(part.weight for part in parts)
    if profile.max_group_size and total > profile.max_group_size:
        raise invalid(
            f"the {'members' if profile.counts_members else 'weights'} of {where} add up to "
            f"{total}; at most {profile.max_group_size} is allowed (max_group_size of the P4Info)"
        )
    return ActionSet(tuple(parts))


def encode_target(p4info: P4Info, target: Target, message: Any) -> None:
    """Fill a `TableAction`, as it was written."""
    if isinstance(target, MemberRef):
        message.action_profile_member_id = target.id
    elif isinstance(target, GroupRef):
        message.action_profile_group_id = target.id
    else:
        for part in target.actions:
            item = message.action_profile_action_set.action_profile_actions.add(weight=part.weight)
            encode_action(p4info, part.action, part.args, item)


def _check_weight(weight: int, where: str) -> None:
    if not 0 < weight <= _MAX_WEIGHT:
        raise invalid(f"weight {weight} in {where}: it must be 1 to {_MAX_WEIGHT}")


def _check_watch(message: Any, where: str) -> None:
    if message.WhichOneof("watch_kind") is not None:
        raise P4RuntimeError(code_pb2.UNIMPLEMENTED, f"{where}: watch ports are not supported")


# -- Members -------------------------------------------------------------------------------------


def plan_member(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """The operation of an update of an `ActionProfileMember`."""
    spec = _find(config, message.action_profile_id)
    profile = config.pipeline.profiles[spec.name]
    member_id = message.member_id
    if member_id == 0:
        raise invalid(f"member_id of '{spec.name}' is 0; ids start at 1")
    if update_type == _Update.DELETE:
        return _guarded(lambda: profile.delete_member(member_id))
    if not message.HasField("action"):
        raise invalid(f"member {member_id} of '{spec.name}' has no action")
    table = _table_of(config, spec)
    action, args = decode_table_action(table, message.action, as_default=False)
    if update_type == _Update.INSERT:
        return _guarded(lambda: profile.insert_member(member_id, action, args))
    return _guarded(lambda: profile.modify_member(member_id, action, args))


def query_members(config: ForwardingConfig, message: Any) -> Query:
    """One member, or all; of one profile or of all."""
    selected = _selected(config, message.action_profile_id, message.member_id)
    member_id = message.member_id

    def snapshot() -> list[Any]:
        with profile_errors():
            return [
                (spec.id, member.id, member.action, member.args)
                for spec, profile in selected
                for member in (
                    [profile.member(member_id)] if member_id else profile.members.values()
                )
            ]

    def encode(row: Any) -> Any:
        entity = p4runtime_pb2.Entity()
        out = entity.action_profile_member
        out.action_profile_id, out.member_id, action, args = row
        encode_action(config.p4info, action, args, out)
        return entity

    return Query(snapshot, encode)


def _selected(
    config: ForwardingConfig, profile_id: int, object_id: int
) -> list[tuple[ProfileSpec, ActionProfile]]:
    if profile_id:
        specs = [_find(config, profile_id)]
    elif object_id:
        raise invalid(f"id {object_id} is given, but no action_profile_id that it belongs to")
    else:
        specs = list(config.p4info.profiles.values())
    return [(spec, config.pipeline.profiles[spec.name]) for spec in specs]


# -- Groups --------------------------------------------------------------------------------------


def plan_group(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """The operation of an update of an `ActionProfileGroup`."""
    spec = _find(config, message.action_profile_id)
    profile = config.pipeline.profiles[spec.name]
    if not spec.has_selector:
        raise invalid(f"'{spec.name}' is an action profile without a selector: it has no groups")
    group_id = message.group_id
    if group_id == 0:
        raise invalid(f"group_id of '{spec.name}' is 0; ids start at 1")
    if update_type == _Update.DELETE:
        return _guarded(lambda: profile.delete_group(group_id))
    weights = _decode_weights(message, f"group {group_id} of '{spec.name}'")
    max_size = message.max_size
    if max_size < 0 or (spec.max_group_size and max_size > spec.max_group_size):
        raise invalid(
            f"max_size {max_size} of group {group_id} of '{spec.name}' is not within 0 to "
            f"{spec.max_group_size} (max_group_size of the P4Info)"
        )
    limit = max_size or spec.max_group_size
    total = len(weights) if spec.counts_members else sum(weights.values())
    if limit and total > limit:
        raise P4RuntimeError(
            code_pb2.RESOURCE_EXHAUSTED,
            f"the {'members' if spec.counts_members else 'weights'} of group {group_id} of "
            f"'{spec.name}' add up to {total}; at most {limit} is allowed",
        )
    if update_type == _Update.INSERT:
        return _guarded(lambda: profile.insert_group(group_id, weights, max_size))

    def modify() -> None:
        group = profile.group(group_id)
        if group.max_size != max_size:
            raise invalid(
                f"max_size of group {group_id} of '{spec.name}' cannot change from "
                f"{group.max_size} to {max_size}"
            )
        profile.modify_group(group_id, weights)

    return _guarded(modify)


def _decode_weights(message: Any, where: str) -> dict[int, int]:
    weights: dict[int, int] = {}
    for member in message.members:
        _check_watch(member, where)
        _check_weight(member.weight, where)
        if member.member_id in weights:
            raise invalid(f"member {member.member_id} is in {where} twice; use its weight")
        weights[member.member_id] = member.weight
    return weights


def query_groups(config: ForwardingConfig, message: Any) -> Query:
    """One group, or all; of one profile or of all."""
    selected = _selected(config, message.action_profile_id, message.group_id)
    group_id = message.group_id

    def snapshot() -> list[Any]:
        with profile_errors():
            return [
                (spec.id, group.id, group.max_size, dict(group.weights))
                for spec, profile in selected
                for group in ([profile.group(group_id)] if group_id else profile.groups.values())
            ]

    def encode(row: Any) -> Any:
        entity = p4runtime_pb2.Entity()
        out = entity.action_profile_group
        out.action_profile_id, out.group_id, out.max_size, weights = row
        for member_id, weight in weights.items():
            out.members.add(member_id=member_id, weight=weight)
        return entity

    return Query(snapshot, encode)


def _guarded(operation: Operation) -> Operation:
    def run() -> None:
        with profile_errors():
            operation()

    return run
