# SPDX-License-Identifier: Apache-2.0
"""Updates of a Write: from a P4Runtime message to an operation on the pipeline.

`plan` checks all of an update that does not depend on the pipeline's state and returns what is left
to do; match keys, priorities and actions are checked in entities/table_entries.py. What is left is
short, so that the data plane, which runs it between two packets, is not held up by protobuf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid
from p4reduce_switch.p4runtime import bytestrings
from p4reduce_switch.p4runtime.bytestrings import format_value
from p4reduce_switch.p4runtime.config import ForwardingConfig, GroupForm
from p4reduce_switch.p4runtime.entities.clones import plan_session
from p4reduce_switch.p4runtime.entities.digests import plan_digest
from p4reduce_switch.p4runtime.entities.idle import check_idle_timeout, set_timeout
from p4reduce_switch.p4runtime.entities.meters import (
    check_direct_meter,
    configure_entry,
    decode_rates,
    metered_table,
    plan_meter,
)
from p4reduce_switch.p4runtime.entities.profiles import (
    decode_target,
    plan_group,
    plan_member,
    profile_errors,
)
from p4reduce_switch.p4runtime.entities.table_entries import (
    UNSUPPORTED,
    decode_action,
    decode_match,
    decode_priority,
    find_table,
)
from p4reduce_switch.p4runtime.entities.value_sets import plan_value_set
from p4reduce_switch.p4runtime.p4info import names
from p4reduce_switch.state.multicast import GroupExists, NoSuchGroup, Replica
from p4reduce_switch.state.profiles import IndirectTable
from p4reduce_switch.state.tables import Entry, EntryExists, ImmutableTable, NoSuchEntry, TableFull

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.p4info import TableSpec
    from p4reduce_switch.state.targets import Target

__all__ = ["MAX_GROUP_ID", "Operation", "plan"]

Operation: TypeAlias = Callable[[], None]

# BMv2's server keeps the upper half of the group ids for clone sessions.
MAX_GROUP_ID = (1 << 15) - 1
_MAX_INSTANCE = (1 << 16) - 1  # egress_rid is a bit<16> in v1model
_PORT_WIDTH = 9  # bits of a port in v1model

_Update = p4runtime_pb2.Update


def plan(config: ForwardingConfig, update: Any) -> Operation:
    """Check one `p4.v1.Update` and return the operation that carries it out.

    Raises:
        P4RuntimeError: the update is malformed. The operation raises the same for what the
            pipeline's state refuses.
    """
    kind = update.entity.WhichOneof("entity")
    if kind is None:
        raise invalid("the update has no entity")
    if kind == "register_entry":
        raise P4RuntimeError(code_pb2.UNIMPLEMENTED, "registers can be read, not written")
    if kind in UNSUPPORTED:
        raise P4RuntimeError(code_pb2.UNIMPLEMENTED, UNSUPPORTED[kind])
    if update.type not in (_Update.INSERT, _Update.MODIFY, _Update.DELETE):
        raise invalid(
            f"update type {update.type} is not one of INSERT (1), MODIFY (2) and DELETE (3)"
        )
    entity = getattr(update.entity, kind)
    if kind == "table_entry":
        return _plan_table_entry(config, update.type, entity)
    if kind == "counter_entry":
        return _plan_counter(config, update.type, entity)
    if kind == "direct_counter_entry":
        return _plan_direct_counter(config, update.type, entity)
    if kind == "meter_entry":
        return plan_meter(config, update.type, entity)
    if kind == "direct_meter_entry":
        return _plan_direct_meter(config, update.type, entity)
    if kind == "digest_entry":
        return plan_digest(config, update.type, entity)
    if kind == "action_profile_member":
        return plan_member(config, update.type, entity)
    if kind == "action_profile_group":
        return plan_group(config, update.type, entity)
    if kind == "value_set_entry":
        return plan_value_set(config, update.type, entity)
    return _plan_replication(config, update.type, entity)


# -- Table entries -------------------------------------------------------------------------------


def _plan_table_entry(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    table = find_table(config.p4info, message.table_id)
    if message.is_const:
        raise invalid(
            f"is_const is set in an update of table '{table.name}'; only the program can make "
            "entries constant"
        )
    if message.is_default_action:
        return _plan_default(config, table, update_type, message)
    if update_type == _Update.DELETE:
        # "All other fields must be ignored, even if they have nonsensical values."
        return _plan_delete(config, table, message)
    _check_volatile(table, message)
    if update_type == _Update.INSERT:
        return _plan_insert(config, table, message)
    return _plan_modify(config, table, message)


def _check_volatile(table: TableSpec, message: Any) -> None:
    """Refuse what belongs to resources that the table has not."""
    check_idle_timeout(table, message)
    if message.HasField("counter_data"):
        if not table.has_direct_counter:
            raise invalid(f"counter_data is set, but table '{table.name}' has no direct counter")
        _check_counter_data(message.counter_data)


def _check_counter_data(data: Any) -> None:
    for field in ("packet_count", "byte_count"):
        value = getattr(data, field)
        if value < 0:
            raise invalid(f"{field} is {value}; it must not be negative")


def _plan_insert(config: ForwardingConfig, table: TableSpec, message: Any) -> Operation:
    _refuse_const(table, "an entry cannot be inserted")
    if not table.fields:
        raise invalid(
            f"table '{table.name}' has no key, so it has no entries but the default; "
            "use MODIFY with is_default_action"
        )
    match = decode_match(table, message.match)
    priority = decode_priority(table, message.priority)
    rates = check_direct_meter(table, message)
    if not message.HasField("action"):
        raise invalid(f"an INSERT into table '{table.name}' must give an action")
    action, args, target_ref = _decode_entry_action(table, message.action)
    entry = Entry(
        match=match,
        priority=priority,
        action=action,
        args=args,
        packets=message.counter_data.packet_count,
        bytes=message.counter_data.byte_count,
        controller_metadata=message.controller_metadata,
        metadata=message.metadata,
        target=target_ref,
    )
    configure_entry(config, table, entry, rates)
    target = config.pipeline.tables[table.name]

    def insert() -> None:
        try:
            with profile_errors():
                target.insert(entry)
            set_timeout(config, table, entry, message.idle_timeout_ns, is_new=True)
        except EntryExists:
            raise P4RuntimeError(
                code_pb2.ALREADY_EXISTS,
                f"table '{table.name}' already has an entry {_key_text(table, match, priority)}; "
                "use MODIFY to change it",
            ) from None
        except TableFull:
            raise P4RuntimeError(
                code_pb2.RESOURCE_EXHAUSTED,
                f"table '{table.name}' is full: it holds {target.size} entries",
            ) from None
        except ImmutableTable as error:
            raise P4RuntimeError(code_pb2.PERMISSION_DENIED, str(error)) from None

    return insert


def _decode_entry_action(
    table: TableSpec, message: Any
) -> tuple[str, tuple[int, ...], Target | None]:
    """Action and arguments of an entry, or, in an indirect table, its target."""
    if table.profile is not None:
        return "", (), decode_target(table, message)
    return *decode_action(table, message, as_default=False), None


def _plan_modify(config: ForwardingConfig, table: TableSpec, message: Any) -> Operation:
    if message.HasField("action"):
        _refuse_const(table, "the action of an entry cannot be modified")
    find = _finder(config, table, message)
    rates = check_direct_meter(table, message)
    new_action = _decode_entry_action(table, message.action) if message.HasField("action") else None
    target = config.pipeline.tables[table.name]

    def modify() -> None:
        entry = find()
        if new_action is not None:
            _refuse_const_entry(table, entry, "modified")
            action, args, target_ref = new_action
            if target_ref is None:
                target.modify(entry.match, entry.priority, action, args)
            else:
                assert isinstance(target, IndirectTable)
                with profile_errors():
                    target.retarget(entry.match, entry.priority, target_ref)
        configure_entry(config, table, entry, rates)
        set_timeout(config, table, entry, message.idle_timeout_ns, is_new=False)
        if not entry.is_const:
            entry.controller_metadata = message.controller_metadata
            entry.metadata = message.metadata
        if message.HasField("counter_data"):
            entry.packets = message.counter_data.packet_count
            entry.bytes = message.counter_data.byte_count

    return modify


def _plan_delete(config: ForwardingConfig, table: TableSpec, message: Any) -> Operation:
    _refuse_const(table, "an entry cannot be deleted")
    match = decode_match(table, message.match)
    priority = decode_priority(table, message.priority)
    target = config.pipeline.tables[table.name]

    def delete() -> None:
        entry = target.find(match, priority)
        if entry is not None:
            _refuse_const_entry(table, entry, "deleted")
        try:
            target.delete(match, priority)
        except NoSuchEntry:
            raise _no_such_entry(table, match, priority) from None

    return delete


def _plan_default(
    config: ForwardingConfig, table: TableSpec, update_type: int, message: Any
) -> Operation:
    if update_type != _Update.MODIFY:
        raise invalid(
            f"{_Update.Type.Name(update_type)} of the default entry of table '{table.name}': "
            "the default entry always exists, so it can only be MODIFYed"
        )
    _check_default_key(table, message)
    _check_volatile(table, message)
    if check_direct_meter(table, message) is not None:
        raise P4RuntimeError(
            code_pb2.UNIMPLEMENTED, "default entries have no direct meter, as in BMv2"
        )
    if table.has_const_default_action or table.profile is not None:
        raise P4RuntimeError(
            code_pb2.PERMISSION_DENIED,
            f"the default action of table '{table.name}' is constant in the program",
        )
    target = config.pipeline.tables[table.name]
    if not message.HasField("action"):

        def reset() -> None:
            target.reset_default()
            entry = target.default_entry
            entry.packets = entry.bytes = 0
            entry.controller_metadata = 0
            entry.metadata = b""

        return reset

    action, args = decode_action(table, message.action, as_default=True)

    def set_default() -> None:
        target.set_default(action, args)
        entry = target.default_entry
        entry.controller_metadata = message.controller_metadata
        entry.metadata = message.metadata
        if message.HasField("counter_data"):
            entry.packets = message.counter_data.packet_count
            entry.bytes = message.counter_data.byte_count

    return set_default


def _check_default_key(table: TableSpec, message: Any) -> None:
    if message.match or message.priority:
        raise invalid(
            f"the default entry of table '{table.name}' has no key: match must be empty and "
            "priority 0"
        )


def _refuse_const(table: TableSpec, what: str) -> None:
    if table.is_const:
        raise P4RuntimeError(
            code_pb2.PERMISSION_DENIED,
            f"table '{table.name}' has constant entries in the program: {what}",
        )


def _refuse_const_entry(table: TableSpec, entry: Entry, what: str) -> None:
    if entry.is_const:
        raise P4RuntimeError(
            code_pb2.PERMISSION_DENIED,
            f"this entry of table '{table.name}' is constant in the program: it cannot be {what}",
        )


def _no_such_entry(table: TableSpec, match: tuple[Any, ...], priority: int) -> P4RuntimeError:
    return P4RuntimeError(
        code_pb2.NOT_FOUND,
        f"table '{table.name}' has no entry {_key_text(table, match, priority)}",
    )


def _key_text(table: TableSpec, match: tuple[Any, ...], priority: int) -> str:
    parts = []
    for field, value in zip(table.fields, match, strict=True):
        if not isinstance(value, tuple):
            text = format_value(value)
        elif field.kind == "lpm":
            text = f"{format_value(value[0])}/{value[1]}"
        elif field.kind == "range":
            text = f"{format_value(value[0])}..{format_value(value[1])}"
        else:
            text = f"{format_value(value[0])} &&& {format_value(value[1])}"
        parts.append(f"{field.name}={text}")
    if table.needs_priority:
        parts.append(f"priority={priority}")
    return "(" + ", ".join(parts) + ")"


# -- Counters ------------------------------------------------------------------------------------


def _only_modify(update_type: int, what: str) -> None:
    if update_type != _Update.MODIFY:
        raise invalid(f"{_Update.Type.Name(update_type)} of {what}: it can only be MODIFYed")


def _plan_counter(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    spec = config.p4info.counters.get(message.counter_id)
    if spec is None:
        raise invalid(
            f"counter_id {message.counter_id:#x} is not an indirect counter of this pipeline; "
            f"its counters are {names(c.name for c in config.p4info.counters.values())}"
        )
    _only_modify(update_type, f"counter '{spec.name}'")
    _check_counter_data(message.data)
    if message.HasField("index"):
        index = message.index.index
        if index < 0:
            raise invalid(f"index {index} of counter '{spec.name}' is negative")
        if index >= spec.size:
            raise P4RuntimeError(
                code_pb2.OUT_OF_RANGE,
                f"index {index} of counter '{spec.name}' is not within 0 to {spec.size - 1}",
            )
        indices = range(index, index + 1)
    else:
        indices = range(spec.size)
    target = config.pipeline.counters[spec.name]
    packets, size = message.data.packet_count, message.data.byte_count
    has_data = message.HasField("data")

    def write() -> None:
        if has_data:
            for i in indices:
                target.write(i, packets, size)

    return write


def _plan_direct_counter(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    if not message.HasField("table_entry"):
        raise invalid("a DirectCounterEntry must give the table_entry that it belongs to")
    key = message.table_entry
    table = find_table(config.p4info, key.table_id)
    if not table.has_direct_counter:
        raise invalid(f"table '{table.name}' has no direct counter")
    _only_modify(update_type, f"a direct counter of table '{table.name}'")
    _check_counter_data(message.data)
    find = _finder(config, table, key)
    has_data = message.HasField("data")
    packets, size = message.data.packet_count, message.data.byte_count

    def write() -> None:
        entry = find()
        if has_data:
            entry.packets, entry.bytes = packets, size

    return write


def _plan_direct_meter(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    table = metered_table(config, message)
    _only_modify(update_type, f"a direct meter of table '{table.name}'")
    rates = decode_rates(message, f"an entry of table '{table.name}'")
    find = _finder(config, table, message.table_entry)
    return lambda: configure_entry(config, table, find(), rates)


def _finder(config: ForwardingConfig, table: TableSpec, key: Any) -> Callable[[], Entry]:
    """What finds the entry of a `TableEntry`'s key, or raises NOT_FOUND."""
    target = config.pipeline.tables[table.name]
    if key.is_default_action:
        _check_default_key(table, key)
        return lambda: target.default_entry
    match = decode_match(table, key.match)
    priority = decode_priority(table, key.priority)

    def find() -> Entry:
        entry = target.find(match, priority)
        if entry is None:
            raise _no_such_entry(table, match, priority)
        return entry

    return find


# -- Packet replication --------------------------------------------------------------------------


def _plan_replication(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    kind = message.WhichOneof("type")
    if kind is None:
        raise invalid("the packet_replication_engine_entry is empty; give a multicast_group_entry")
    if kind == "clone_session_entry":
        return plan_session(config, update_type, message.clone_session_entry, _decode_replicas)
    group = message.multicast_group_entry
    group_id = group.multicast_group_id
    if group_id == 0:
        raise invalid("multicast_group_id 0 means no group; use 1 or above")
    if group_id > MAX_GROUP_ID:
        raise P4RuntimeError(
            code_pb2.OUT_OF_RANGE,
            f"multicast_group_id {group_id} is above the maximum of {MAX_GROUP_ID}",
        )
    groups = config.pipeline.multicast
    forms = config.group_forms

    if update_type == _Update.DELETE:

        def delete() -> None:
            try:
                groups.delete(group_id)
            except NoSuchGroup:
                raise _no_such_group(group_id) from None
            forms.pop(group_id, None)

        return delete

    replicas, as_bytes = _decode_replicas(group.replicas, f"multicast group {group_id}")
    form = GroupForm(group.metadata, as_bytes)
    if update_type == _Update.INSERT:

        def insert() -> None:
            try:
                groups.insert(group_id, replicas)
            except GroupExists:
                raise P4RuntimeError(
                    code_pb2.ALREADY_EXISTS,
                    f"multicast group {group_id} already exists; use MODIFY to change it",
                ) from None
            forms[group_id] = form

        return insert

    def modify() -> None:
        try:
            groups.modify(group_id, replicas)
        except NoSuchGroup:
            raise _no_such_group(group_id) from None
        forms[group_id] = form

    return modify


def _no_such_group(group_id: int) -> P4RuntimeError:
    return P4RuntimeError(code_pb2.NOT_FOUND, f"multicast group {group_id} does not exist")


def _decode_replicas(messages: Any, owner: str) -> tuple[tuple[Replica, ...], frozenset[Replica]]:
    """The replicas, and those of them whose port was given as bytes."""
    replicas: list[Replica] = []
    as_bytes: set[Replica] = set()
    for message in messages:
        where = f"replica {len(replicas)} of {owner}"
        kind = message.WhichOneof("port_kind")
        if kind is None:
            raise invalid(f"{where} has no port; set egress_port, or port")
        if kind == "port":
            try:
                port = bytestrings.decode(message.port, _PORT_WIDTH)
            except bytestrings.BytestringError as error:
                raise invalid(f"{where}, port: {error}") from None
        else:
            port = message.egress_port
        if port >> _PORT_WIDTH:
            raise invalid(f"{where}: port {port} is not within 0 to {(1 << _PORT_WIDTH) - 1}")
        if message.instance > _MAX_INSTANCE:
            raise invalid(f"{where}: instance {message.instance} is above {_MAX_INSTANCE}")
        replica = Replica(port, message.instance)
        if replica in replicas:
            raise invalid(f"{where}: port {port}, instance {message.instance} is already a replica")
        replicas.append(replica)
        if kind == "port":
            as_bytes.add(replica)
    return tuple(replicas), frozenset(as_bytes)
