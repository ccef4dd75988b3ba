# SPDX-License-Identifier: Apache-2.0
"""Carries the forwarding state of a pipeline over to another one (RECONCILE_AND_COMMIT).

What a controller has written is read by the old P4Info and written by the new one, as PI does for
BMv2. So an object keeps its state if it keeps its id and the entries still fit. What packets have
changed (counts, registers, times of hits) is copied when the data plane changes over, as far as
the new program has cells for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid, of_state
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.entities.common import shown_of
from p4reduce_switch.p4runtime.entities.kinds import Query
from p4reduce_switch.p4runtime.entities.registry import plan_read, plan_update
from p4reduce_switch.state.errors import StateError

_Entity = p4runtime_pb2.Entity
_MODIFIED = frozenset({"value_set_entry", "meter_entry"})
_DIFFERENCES_SHOWN = 8


def queries(old: ForwardingConfig) -> list[Query]:
    """Return queries of all that a controller may have written, in an order that can be replayed.

    Their snapshots belong into the data plane's thread.
    """
    wanted = [
        _Entity(value_set_entry={}),
        _Entity(action_profile_member={}),
        _Entity(action_profile_group={}),
        _Entity(table_entry={"counter_data": {}, "meter_config": {}}),
        _Entity(meter_entry={}),
        _Entity(digest_entry={}),
        _Entity(packet_replication_engine_entry={"multicast_group_entry": {}}),
        _Entity(packet_replication_engine_entry={"clone_session_entry": {}}),
    ]
    wanted += [
        _Entity(table_entry={"table_id": spec.id, "is_default_action": True})
        for spec in old.p4info.tables.values()
        if old.pipeline.tables[spec.name].default_is_changed
    ]
    return [plan_read(old, entity) for entity in wanted]


def replay(old: ForwardingConfig, new: ForwardingConfig, entities: Iterator[Any]) -> None:
    """Write what was read of the old pipeline into the new one, which no packet uses yet.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT, with what does not fit.
    """
    for spec in old.p4info.tables.values():
        _make_room(old, new, spec.id)
    differences: dict[str, int] = {}
    for entity in entities:
        message = getattr(entity, entity.WhichOneof("entity"))
        if _belongs_to_program(entity, message):
            continue
        error = _write(new, entity)
        if error is not None:
            text = f"{_name(old, entity, message)}: {error.message}"
            differences[text] = differences.get(text, 0) + 1
    if differences:
        raise _refusal(differences)


def copy_volatile(old: ForwardingConfig, new: ForwardingConfig) -> None:
    """Copy what packets have changed. For the data plane's thread, before the new pipeline runs.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT, a register's value does not fit the new cells.
    """
    differences: dict[str, int] = {}
    for number, register in old.p4info.registers.items():
        if number in new.p4info.registers:
            source = old.pipeline.registers[register.name]
            target = new.pipeline.registers[new.p4info.registers[number].name]
            for index in range(min(source.size, target.size)):
                value = source.cells[index]
                if value >> target.width:
                    text = f"register '{register.name}': a cell needs more than {target.width} bits"
                    differences[text] = differences.get(text, 0) + 1
                    continue
                target.cells[index] = value
    if differences:
        raise _refusal(differences)
    for number, counter in old.p4info.counters.items():
        if number in new.p4info.counters:
            before = old.pipeline.counters[counter.name]
            after = new.pipeline.counters[new.p4info.counters[number].name]
            size = min(before.size, after.size)
            after.packets[:size] = before.packets[:size]
            after.bytes[:size] = before.bytes[:size]
    for number, spec in old.p4info.tables.items():
        if number in new.p4info.tables:
            table = new.pipeline.tables[new.p4info.tables[number].name]
            previous = old.pipeline.tables[spec.name]
            if table.key != previous.key:
                continue  # it has no entries, or they would not fit
            pairs = [(e, table.find(e.match, e.priority)) for e in previous.entries()]
            for entry, same in [*pairs, (previous.default_entry, table.default_entry)]:
                if same is not None:
                    same.packets, same.bytes = entry.packets, entry.bytes
                    same.last_hit_ns = entry.last_hit_ns


def _make_room(old: ForwardingConfig, new: ForwardingConfig, number: int) -> None:
    """Remove the new program's own entries that a controller may have changed before."""
    spec = new.p4info.tables.get(number)
    if spec is None or not old.pipeline.tables[old.p4info.tables[number].name].has_initial_entries:
        return
    table = new.pipeline.tables[spec.name]
    for entry in table.entries():
        if not entry.is_const:
            table.delete(entry.match, entry.priority)


def _belongs_to_program(entity: Any, message: Any) -> bool:
    """Whether nobody has written it: a constant entry, a meter without rates, an empty set."""
    if entity.HasField("meter_entry"):
        return not message.HasField("config")
    if entity.HasField("value_set_entry"):
        return not message.members
    return entity.HasField("table_entry") and bool(message.is_const)


def _update_of(entity: Any) -> Any:
    kind = entity.WhichOneof("entity")
    modifies = kind in _MODIFIED or entity.table_entry.is_default_action
    update = p4runtime_pb2.Update
    return update(type=update.MODIFY if modifies else update.INSERT, entity=entity)


def _write(new: ForwardingConfig, entity: Any) -> P4RuntimeError | None:
    try:
        plan_update(new, _update_of(entity))()
    except P4RuntimeError as error:
        return error
    except StateError as error:
        return of_state(error)
    return None


def _name(old: ForwardingConfig, entity: Any, message: Any) -> str:
    if entity.HasField("table_entry"):
        return f"an entry of table '{old.p4info.tables[message.table_id].name}'"
    return f"a {entity.WhichOneof('entity')}"


def _refusal(differences: dict[str, int]) -> P4RuntimeError:
    texts = [
        text if count == 1 else f"{text} (and {count - 1} more like it)"
        for text, count in differences.items()
    ]
    return invalid(
        "the forwarding state does not fit the new program, and nothing has changed: "
        + shown_of(texts, _DIFFERENCES_SHOWN)
    )
