# SPDX-License-Identifier: Apache-2.0
"""The entries that a program has in its tables from the start, by P4Runtime.

P4Runtime 1.4.1, "Constant Tables" and "Preinitialized tables". The JSON for BMv2 has neither
priorities nor which entries are constant: only their order, which decides for packets. Both are in
the entries file that p4c writes (--p4runtime-entries-files), a `WriteRequest`. Without that file
priorities are n to 1, which is p4c's default too, and no entry of a table without `const` is
constant.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from google.protobuf import text_format
from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid
from p4reduce_switch.p4runtime.entities.table_entries import decode_match
from p4reduce_switch.p4runtime.p4info import P4Info, TableSpec
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.tables import TableEntry

log = logging.getLogger(__name__)


def open_tables(p4info: P4Info, pipeline: Pipeline, entries_file: bytes) -> None:
    """Let controllers change the initial entries that are not constant.

    Args:
        entries_file: p4c's, as text; empty: there is none.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT, the file does not belong to the program.
    """
    given = _by_table(entries_file)
    for spec in p4info.tables.values():
        table = pipeline.tables[spec.name]
        messages = given.pop(spec.id, None)
        if not table.has_initial_entries or (messages is None and spec.is_const):
            continue
        entries = table.entries()
        if messages is None:
            if not spec.is_const:
                table.open(spec.size, [False] * len(entries), None)
            continue
        _check(spec, entries, messages)
        priorities = _priorities(spec, messages)
        table.open(spec.size, [spec.is_const or m.is_const for m in messages], priorities)
        table.is_const = spec.is_const
    if given:
        raise invalid(f"the entries file has a table {min(given):#x}, which is not in the P4Info")


def _by_table(entries_file: bytes) -> dict[int, list[Any]]:
    try:
        request = text_format.Parse(entries_file, p4runtime_pb2.WriteRequest())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise invalid(f"the entries file is not a WriteRequest in text form: {error}") from None
    tables: dict[int, list[Any]] = {}
    for update in request.updates:
        entry = update.entity.table_entry
        tables.setdefault(entry.table_id, []).append(entry)
    return tables


def _check(spec: TableSpec, entries: Sequence[TableEntry], messages: Sequence[Any]) -> None:
    """Refuse the entries file of another program."""
    try:
        matches = [decode_match(spec, message.match) for message in messages]
    except P4RuntimeError as error:
        raise invalid(f"the entries file: {error.message}") from None
    if matches != [entry.match for entry in entries]:
        raise invalid(f"the entries file has other entries of table '{spec.name}' than the program")
    keys = {(match, message.priority) for match, message in zip(matches, messages, strict=True)}
    if len(keys) < len(entries):
        raise invalid(f"the entries file has an entry of table '{spec.name}' twice")


def _priorities(spec: TableSpec, messages: Sequence[Any]) -> list[int] | None:
    """The priorities of a table's entries; None: P4Runtime cannot express them."""
    if not spec.needs_priority:
        return None
    priorities = [int(message.priority) for message in messages]
    if priorities == sorted(priorities, reverse=True) and priorities[-1] > 0:
        return priorities
    log.warning(
        "the smallest priority wins in table '%s' (largest_priority_wins), and in P4Runtime the "
        "largest: its entries have the priorities %d to 1, in their order",
        spec.name,
        len(priorities),
    )
    return None
