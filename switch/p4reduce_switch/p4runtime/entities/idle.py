# SPDX-License-Identifier: Apache-2.0
"""Idle timeouts by P4Runtime: `idle_timeout_ns` of entries, and notifications on the stream.

P4Runtime 1.4.1, "Idle-timeout" and "Table Idle Timeout Notification".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import invalid
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.entities.common import in_parts
from p4reduce_switch.p4runtime.entities.table_entries import encode_key
from p4reduce_switch.p4runtime.p4info import TableSpec
from p4reduce_switch.state.tables import TableEntry


def check_idle_timeout(table: TableSpec, message: Any) -> None:
    """Refuse an idle timeout that is negative, or of a table or entry without one.

    Raises:
        P4RuntimeError: that, or time_since_last_hit is given, which can only be read.
    """
    timeout = message.idle_timeout_ns
    if message.HasField("time_since_last_hit"):
        raise invalid(f"time_since_last_hit of table '{table.name}' can only be read")
    if timeout == 0:
        return
    if not table.supports_idle_timeout:
        raise invalid(
            f"idle_timeout_ns is {timeout}, but table '{table.name}' has no idle timeout; "
            "it must be 0"
        )
    if message.is_default_action:
        raise invalid(f"idle_timeout_ns is {timeout}, but default entries have no idle timeout")
    if timeout < 0:
        raise invalid(f"idle_timeout_ns is {timeout}; it must not be negative")


def set_timeout(
    config: ForwardingConfig, table: TableSpec, entry: TableEntry, timeout_ns: int, *, is_new: bool
) -> None:
    """Give an entry its timeout. As in BMv2, its time restarts only if the timeout changes."""
    monitor = config.pipeline.idle.get(table.name)
    if monitor is not None and (is_new or entry.idle_timeout_ns != timeout_ns):
        monitor.start(entry, timeout_ns)


def idle_messages(table: TableSpec, entries: list[TableEntry]) -> Iterator[Any]:
    """Yield the `StreamMessageResponse`s of idle entries."""
    for part in in_parts(_idle_entry(table, entry) for entry in entries):
        response = p4runtime_pb2.StreamMessageResponse()
        response.idle_timeout_notification.timestamp = time.time_ns()
        response.idle_timeout_notification.table_entry.extend(part)
        yield response


def _idle_entry(table: TableSpec, entry: TableEntry) -> Any:
    out = p4runtime_pb2.TableEntry(
        table_id=table.id,
        idle_timeout_ns=entry.idle_timeout_ns,
        controller_metadata=entry.controller_metadata,
        metadata=entry.metadata,
    )
    encode_key(table, entry.match, entry.priority, out)
    return out
