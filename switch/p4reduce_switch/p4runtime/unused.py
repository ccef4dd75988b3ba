# SPDX-License-Identifier: Apache-2.0
"""Objects that are in the P4Info but not in the program.

p4c writes the P4Info before it optimises. So a table or counter that no packet can reach is in the
P4Info, but not in the JSON. A controller can write and read such objects as usual, but no packet
uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from p4reduce_switch.p4runtime.p4info import P4Info, TableSpec, state_key
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.digests import Digest
from p4reduce_switch.state.idle import IdleMonitor
from p4reduce_switch.state.meters import MeterArray
from p4reduce_switch.state.profiles import ActionProfile, IndirectTable
from p4reduce_switch.state.registers import Counter, Register
from p4reduce_switch.state.tables import ActionInfo, Table
from p4reduce_switch.state.value_sets import ValueSet

_NOTHING = ActionInfo("", ())
"""What a miss does, if the P4Info names nothing that could be done; it has no id."""

_Object = TypeVar("_Object")


def add_unused(p4info: P4Info, pipeline: Pipeline) -> None:
    """Add the objects that only the P4Info has to the pipeline, so requests find them."""
    clock = pipeline.timers.clock
    pipeline.profiles = _with(
        pipeline.profiles,
        (
            ActionProfile(p.name, p.size, has_selector=p.has_selector)
            for p in p4info.profiles.values()
        ),
    )
    unused = [spec for spec in p4info.tables.values() if spec.name not in pipeline.tables]
    tables = [_table(spec, pipeline.profiles) for spec in unused]
    pipeline.tables = _with(pipeline.tables, tables)
    pipeline.idle = {
        **pipeline.idle,
        **{
            table.name: IdleMonitor(table, pipeline.timers)
            for spec, table in zip(unused, tables, strict=True)
            if spec.supports_idle_timeout
        },
    }
    pipeline.counters = _with(
        pipeline.counters, (Counter(c.name, c.size) for c in p4info.counters.values())
    )
    pipeline.registers = _with(
        pipeline.registers,
        (Register(r.name, r.width, r.size) for r in p4info.registers.values()),
    )
    direct = [(spec.meter, spec.name) for spec in unused if spec.meter is not None]
    meters = [*((meter, None) for meter in p4info.meters.values()), *direct]
    pipeline.meters = _with(
        pipeline.meters,
        (MeterArray(m.name, m.size, clock, in_bytes=m.in_bytes, table=t) for m, t in meters),
    )
    pipeline.digests = _with(
        pipeline.digests, (Digest(d.loaded, pipeline.timers) for d in p4info.digests.values())
    )
    pipeline.value_sets = _with(
        pipeline.value_sets,
        (ValueSet(v.name, v.widths, v.size) for v in p4info.value_sets.values()),
    )


def _with(there: Mapping[str, _Object], more: Any) -> Mapping[str, _Object]:
    """Return all objects by name; those of `there` go before those of `more`."""
    return {**{item.name: item for item in more}, **there}


def _table(spec: TableSpec, profiles: Mapping[str, ActionProfile]) -> Table:
    key = state_key(spec.fields)
    actions = [
        ActionInfo(use.action.name, tuple((p.name, p.width) for p in use.action.params))
        for use in spec.actions.values()
    ]
    make: Callable[..., Table] = Table
    if spec.profile is not None:
        make = partial(IndirectTable, profile=profiles[spec.profile.name])
    return make(
        spec.name,
        key,
        spec.size,
        [*actions, _NOTHING],
        spec.initial_default or (_NOTHING.name, ()),
        const_default_action=spec.has_const_default,
        has_direct_counter=spec.has_direct_counter,
    )
