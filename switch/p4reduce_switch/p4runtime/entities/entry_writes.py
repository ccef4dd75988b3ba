# SPDX-License-Identifier: Apache-2.0
"""Updates of table entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import already_exists, denied, invalid, not_found, unsupported
from p4reduce_switch.p4runtime.bytestrings import format_value
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.entities.counters import check_counter_data
from p4reduce_switch.p4runtime.entities.idle import check_idle_timeout, set_timeout
from p4reduce_switch.p4runtime.entities.kinds import Operation
from p4reduce_switch.p4runtime.entities.meters import check_direct_meter, configure_entry
from p4reduce_switch.p4runtime.entities.profiles import decode_target
from p4reduce_switch.p4runtime.entities.table_entries import (
    decode_action,
    decode_match,
    decode_priority,
    find_table,
)
from p4reduce_switch.p4runtime.p4info import TableSpec
from p4reduce_switch.state.profiles import IndirectTable
from p4reduce_switch.state.tables import TableEntry
from p4reduce_switch.state.targets import Target

_Update = p4runtime_pb2.Update


def plan_entry(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """Return the operation of a `TableEntry` update."""
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
    _check_timeout_and_counts(table, message)
    if update_type == _Update.INSERT:
        return _plan_insert(config, table, message)
    return _plan_modify(config, table, message)


def _check_timeout_and_counts(table: TableSpec, message: Any) -> None:
    """Refuse what belongs to resources that the table has not."""
    check_idle_timeout(table, message)
    if message.HasField("counter_data"):
        if not table.has_direct_counter:
            raise invalid(f"counter_data is set, but table '{table.name}' has no direct counter")
        check_counter_data(message.counter_data)


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
    action, args, target = _decode_entry_action(table, message.action)
    entry = TableEntry(
        match=match,
        priority=priority,
        action=action,
        args=args,
        packets=message.counter_data.packet_count,
        bytes=message.counter_data.byte_count,
        controller_metadata=message.controller_metadata,
        metadata=message.metadata,
        target=target,
    )
    configure_entry(config, table, entry, rates)
    state_table = config.pipeline.tables[table.name]

    def insert() -> None:
        if state_table.find(match, priority) is not None:
            raise already_exists(
                f"table '{table.name}' already has an entry {_key_text(table, match, priority)}; "
                "use MODIFY to change it"
            )
        state_table.insert(entry)
        set_timeout(config, table, entry, message.idle_timeout_ns, is_new=True)

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
    find = find_entry(config, table, message)
    rates = check_direct_meter(table, message)
    new_action = _decode_entry_action(table, message.action) if message.HasField("action") else None
    state_table = config.pipeline.tables[table.name]

    def modify() -> None:
        entry = find()
        if new_action is not None:
            _refuse_const_entry(table, entry, "modified")
            action, args, target = new_action
            if target is None:
                state_table.modify(entry.match, entry.priority, action, args)
            else:
                assert isinstance(state_table, IndirectTable)
                state_table.retarget(entry.match, entry.priority, target)
        configure_entry(config, table, entry, rates)
        set_timeout(config, table, entry, message.idle_timeout_ns, is_new=False)
        _set_extras(entry, message)

    return modify


def _set_extras(entry: TableEntry, message: Any) -> None:
    """Set what a `TableEntry` says beside key and action."""
    if not entry.is_const:
        entry.controller_metadata = message.controller_metadata
        entry.metadata = message.metadata
    if message.HasField("counter_data"):
        entry.packets = message.counter_data.packet_count
        entry.bytes = message.counter_data.byte_count


def _plan_delete(config: ForwardingConfig, table: TableSpec, message: Any) -> Operation:
    _refuse_const(table, "an entry cannot be deleted")
    find = _find_by_key(config, table, message)
    state_table = config.pipeline.tables[table.name]

    def delete() -> None:
        entry = find()
        _refuse_const_entry(table, entry, "deleted")
        state_table.delete(entry.match, entry.priority)

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
    _check_timeout_and_counts(table, message)
    if check_direct_meter(table, message) is not None:
        raise unsupported("default entries have no direct meter, as in BMv2")
    if table.has_const_default:
        raise denied(f"the default action of table '{table.name}' is constant in the program")
    state_table = config.pipeline.tables[table.name]
    if not message.HasField("action"):
        # The specification resets metadata and direct resources too, whatever the message has.
        return state_table.reset_default
    action, args = decode_action(table, message.action, as_default=True)

    def set_default() -> None:
        state_table.set_default(action, args)
        _set_extras(state_table.default_entry, message)

    return set_default


def _check_default_key(table: TableSpec, message: Any) -> None:
    if message.match or message.priority:
        raise invalid(
            f"the default entry of table '{table.name}' has no key: match must be empty and "
            "priority 0"
        )


def _refuse_const(table: TableSpec, what: str) -> None:
    if table.is_const:
        raise denied(f"table '{table.name}' has constant entries in the program: {what}")


def _refuse_const_entry(table: TableSpec, entry: TableEntry, what: str) -> None:
    if entry.is_const:
        raise denied(
            f"this entry of table '{table.name}' is constant in the program: it cannot be {what}"
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


def find_entry(config: ForwardingConfig, table: TableSpec, key: Any) -> Callable[[], TableEntry]:
    """Return a function that finds the entry of a `TableEntry`'s key, or raises NOT_FOUND."""
    if key.is_default_action:
        _check_default_key(table, key)
        return lambda: config.pipeline.tables[table.name].default_entry
    return _find_by_key(config, table, key)


def _find_by_key(config: ForwardingConfig, table: TableSpec, key: Any) -> Callable[[], TableEntry]:
    state_table = config.pipeline.tables[table.name]
    match = decode_match(table, key.match)
    priority = decode_priority(table, key.priority)

    def find() -> TableEntry:
        entry = state_table.find(match, priority)
        if entry is None:
            raise not_found(
                f"table '{table.name}' has no entry {_key_text(table, match, priority)}"
            )
        return entry

    return find
