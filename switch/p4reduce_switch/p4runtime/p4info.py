# SPDX-License-Identifier: Apache-2.0
"""The parts of a P4Info message that the server needs, indexed by id and by name.

`P4Info.parse` reads the message once per pipeline. `P4Info.differences` compares it with the
pipeline that was loaded from the BMv2 JSON. So a P4Info of another program is refused before
anything is written with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

from p4.config.v1 import p4info_pb2

from p4reduce_switch.errors import unsupported
from p4reduce_switch.p4runtime.digest_names import pair_digests
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.profiles import IndirectTable
from p4reduce_switch.state.tables import MatchKey, MatchKind, Table

_MATCH_KINDS: dict[int, MatchKind] = {
    p4info_pb2.MatchField.EXACT: "exact",
    p4info_pb2.MatchField.LPM: "lpm",
    p4info_pb2.MatchField.TERNARY: "ternary",
    p4info_pb2.MatchField.RANGE: "range",
    p4info_pb2.MatchField.OPTIONAL: "optional",
}
# P4Runtime 1.4.1, "TableEntry": these kinds make entries overlap in ways only a priority resolves.
_KINDS_WITH_PRIORITY = frozenset({"ternary", "range", "optional"})
_SCOPES = frozenset(
    {
        p4info_pb2.ActionRef.TABLE_AND_DEFAULT,
        p4info_pb2.ActionRef.TABLE_ONLY,
        p4info_pb2.ActionRef.DEFAULT_ONLY,
    }
)
_GROUP_ACTION = 3  # older stubs do not have it
_NAMES_SHOWN = 8

Translation = Literal["number", "string"] | None
"""What stands for a value: itself (None), a number of another width, or a string. Of all but the
first, the program says the width: `P4Info.fitted` takes it from there."""


class P4InfoError(ValueError):
    """A P4Info contradicts itself, or needs something that this server does not support."""


@dataclass(frozen=True, slots=True)
class P4InfoField:
    """An action parameter, or a field of a packet-in or packet-out header; `width` in bits."""

    id: int
    name: str
    width: int
    translation: Translation = None


@dataclass(frozen=True, slots=True)
class MatchField:
    """A field of a table's key; `width` in bits."""

    id: int
    name: str
    width: int
    kind: MatchKind
    translation: Translation = None


def state_key(fields: Iterable[MatchField]) -> list[MatchKey]:
    """The key in the pipeline's form. As in p4c, an optional field is a ternary one whose mask is
    all or nothing.
    """
    return [
        MatchKey(field.name, field.width, "ternary" if field.kind == "optional" else field.kind)
        for field in fields
    ]


@dataclass(frozen=True, slots=True)
class ActionSpec:
    id: int
    name: str
    params: tuple[P4InfoField, ...]


@dataclass(frozen=True, slots=True)
class ActionUse:
    """How a table may use an action: in entries, as the default action, or both."""

    action: ActionSpec
    in_entries: bool
    as_default: bool


@dataclass(frozen=True, slots=True)
class MeterSpec:
    """An indirect meter of `size` cells, or a direct one."""

    id: int
    name: str
    size: int
    in_bytes: bool


@dataclass(frozen=True, slots=True)
class DigestSpec:
    """A digest. Its fields are (width in bits, signed); `shape` is its kind of `P4Data`."""

    id: int
    name: str
    shape: Literal["struct", "tuple", "bitstring"]
    fields: tuple[tuple[int, bool], ...]
    loaded: str
    """What the program calls it: by another name, if it is of a list (`digest_names.py`)."""

    @property
    def widths(self) -> list[int]:
        return [width for width, _ in self.fields]


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """An action profile or selector.

    `max_group_size` limits the sum of weights, or with `counts_members` the number of members, each
    of which has at most `max_member_weight`. 0 is no limit.
    """

    id: int
    name: str
    has_selector: bool
    size: int
    max_group_size: int
    counts_members: bool = False
    max_member_weight: int = 0


@dataclass(frozen=True, slots=True)
class TableSpec:
    id: int
    name: str
    fields: tuple[MatchField, ...]
    actions: Mapping[int, ActionUse]
    size: int
    is_const: bool
    has_const_default: bool
    initial_default: tuple[str, tuple[int, ...]] | None
    """Action and arguments of the program's default entry; older versions of p4c leave it out."""
    has_direct_counter: bool
    supports_idle_timeout: bool
    profile: ProfileSpec | None
    meter: MeterSpec | None

    @property
    def needs_priority(self) -> bool:
        return any(field.kind in _KINDS_WITH_PRIORITY for field in self.fields)


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An indirect counter of `size` cells."""

    id: int
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class RegisterSpec:
    """A register array of `size` cells; `width` in bits.

    `field`: of `P4Data`, in which a cell is written and read; None for types that no program with
    registers for BMv2 has.
    """

    id: int
    name: str
    size: int
    field: Literal["bitstring", "enum_value"] | None
    width: int
    signed: bool


@dataclass(frozen=True, slots=True)
class ValueSetSpec:
    id: int
    name: str
    fields: tuple[MatchField, ...]
    size: int

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(field.width for field in self.fields)


@dataclass(frozen=True, slots=True)
class PacketHeader:
    """The header annotated `@controller_header`: its fields in wire order, bit-packed.

    `strings` names the fields that a controller sees as strings. P4Info gives them no width, so
    packets with this header cannot be read or written.
    """

    fields: tuple[P4InfoField, ...]
    strings: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes on the wire, rounded up as BMv2's P4Runtime server does."""
        return (sum(field.width for field in self.fields) + 7) // 8


@dataclass(frozen=True)
class P4Info:
    tables: Mapping[int, TableSpec]
    actions: Mapping[int, ActionSpec]
    counters: Mapping[int, ArraySpec]
    registers: Mapping[int, RegisterSpec]
    profiles: Mapping[int, ProfileSpec]
    meters: Mapping[int, MeterSpec]
    digests: Mapping[int, DigestSpec]
    value_sets: Mapping[int, ValueSetSpec]
    packet_in: PacketHeader
    packet_out: PacketHeader

    @cached_property
    def actions_by_name(self) -> Mapping[str, ActionSpec]:
        return {action.name: action for action in self.actions.values()}

    @classmethod
    def parse(cls, message: Any) -> P4Info:
        """Index a `p4.config.v1.P4Info` message.

        Raises:
            P4InfoError: an id is zero or used twice, a reference leads nowhere, or the program uses
                match kinds without support here.
            P4RuntimeError: UNIMPLEMENTED, with the name of a field without support here.
        """
        _check_ids(message)
        types = message.type_info
        actions = _by_id(_parse_action(action, types) for action in message.actions)
        profiles = _by_id(map(_parse_profile, message.action_profiles))
        direct_counters = {counter.preamble.id for counter in message.direct_counters}
        direct_meters = _by_id(_parse_meter(meter, 0) for meter in message.direct_meters)
        headers = {h.preamble.name: _parse_header(h) for h in message.controller_packet_metadata}
        return cls(
            tables=_by_id(
                _parse_table(table, actions, direct_counters, profiles, direct_meters, types)
                for table in message.tables
            ),
            actions=actions,
            counters=_by_id(map(_parse_array, message.counters)),
            registers=_by_id(_parse_register(register, types) for register in message.registers),
            profiles=profiles,
            meters=_by_id(_parse_meter(meter, meter.size) for meter in message.meters),
            digests=_by_id(_parse_digest(digest, types) for digest in message.digests),
            value_sets=_by_id(_parse_value_set(v, types) for v in message.value_sets),
            packet_in=headers.get("packet_in", PacketHeader(())),
            packet_out=headers.get("packet_out", PacketHeader(())),
        )

    def fitted(self, pipeline: Pipeline) -> P4Info:
        """Return the P4Info with the program's facts added: widths of translated values, names of
        digests.

        P4Info has no width for a string or an `error`, and only the controller's width for a
        translated number. The switch has no translations: a number stands for itself.
        """
        params = {
            name: dict(info.params)
            for table in pipeline.tables.values()
            for name, info in table.actions.items()
        }
        actions = _by_id(
            replace(action, params=_fitted(action.params, params.get(action.name, {})))
            for action in self.actions.values()
        )
        tables = {}
        for spec in self.tables.values():
            table = pipeline.tables.get(spec.name)
            widths = {key.name: key.width for key in table.key} if table is not None else {}
            uses = {id_: replace(u, action=actions[id_]) for id_, u in spec.actions.items()}
            tables[spec.id] = replace(spec, fields=_fitted(spec.fields, widths), actions=uses)
        other_names = pair_digests(
            {d.name: d.widths for d in self.digests.values()}, pipeline.digest_widths
        )
        digests = _by_id(
            replace(digest, loaded=other_names.get(digest.name, digest.name))
            for digest in self.digests.values()
        )
        return replace(self, tables=tables, actions=actions, digests=digests)

    def differences(self, pipeline: Pipeline) -> list[str]:
        """Return what the P4Info has and the loaded program lacks; empty if they belong together.

        Objects of the program alone do not count, because p4c makes hidden tables and actions.
        Objects of the P4Info alone do not count either, because p4c leaves out what has no effect;
        they do if the program has others of that kind instead.
        """
        found = [
            f"{kind} '{name}' is not in the program" for kind, name in _replaced(self, pipeline)
        ]
        for spec in self.tables.values():
            if table := pipeline.tables.get(spec.name):
                found.extend(_table_differences(spec, table))
        for counter in self.counters.values():
            loaded = pipeline.counters.get(counter.name)
            if loaded is not None and loaded.size != counter.size:
                found.append(
                    f"counter '{counter.name}' has {counter.size} cells in the P4Info "
                    f"and {loaded.size} in the program"
                )
        found.extend(
            f"value set '{spec.name}' is not the same in the program"
            for spec in self.value_sets.values()
            if (value_set := pipeline.value_sets.get(spec.name)) is not None
            and (value_set.size != spec.size or value_set.widths not in ((), spec.widths))
        )
        found.extend(
            f"register '{spec.name}' is not the same in the program"
            for spec in self.registers.values()
            if (register := pipeline.registers.get(spec.name)) is not None
            and (register.size != spec.size or spec.width not in (0, register.width))
        )
        found.extend(_meter_differences(self, pipeline))
        found.extend(
            f"digest '{digest.name}' is not the same in the program"
            for digest in self.digests.values()
            if pipeline.digest_widths.get(digest.loaded, digest.widths) != digest.widths
        )
        return found


def _check_ids(message: Any) -> None:
    seen: dict[int, str] = {}
    for kind in (
        message.tables,
        message.actions,
        message.counters,
        message.direct_counters,
        message.registers,
        message.action_profiles,
        message.meters,
        message.direct_meters,
        message.digests,
        message.value_sets,
        message.controller_packet_metadata,
    ):
        for item in kind:
            preamble = item.preamble
            if preamble.id == 0:
                raise P4InfoError(f"'{preamble.name}' has id 0, which is reserved")
            if preamble.id in seen:
                raise P4InfoError(
                    f"id {preamble.id:#x} is used by '{seen[preamble.id]}' and '{preamble.name}'"
                )
            seen[preamble.id] = preamble.name


def _replaced(p4info: P4Info, pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Kind and name of what is not in the program, where that has others that are not in P4Info."""
    kinds: tuple[tuple[str, set[str], set[str]], ...] = (
        ("table", {t.name for t in p4info.tables.values()}, _own_tables(pipeline)),
        ("counter", {c.name for c in p4info.counters.values()}, _indirect(pipeline.counters)),
        ("register", {r.name for r in p4info.registers.values()}, set(pipeline.registers)),
        ("meter", {m.name for m in p4info.meters.values()}, _indirect(pipeline.meters)),
        ("digest", {d.loaded for d in p4info.digests.values()}, set(pipeline.digests)),
        ("value set", {v.name for v in p4info.value_sets.values()}, set(pipeline.value_sets)),
    )
    known = {"table": set(pipeline.tables)}
    for kind, said, there in kinds:
        if there - said:
            yield from ((kind, name) for name in sorted(said - known.get(kind, there)))


def _own_tables(pipeline: Pipeline) -> set[str]:
    """The tables that p4c cannot have made up: those have no key, or entries of the program."""
    return {t.name for t in pipeline.tables.values() if t.key and not t.has_initial_entries}


def _indirect(arrays: Mapping[str, Any]) -> set[str]:
    return {name for name, array in arrays.items() if array.table is None}


def _width(item: Any, types: Any) -> tuple[int, Translation]:
    """The width that P4Info says, and what stands for the value."""
    width = int(item.bitwidth)
    name = item.type_name.name
    if name in types.new_types and types.new_types[name].HasField("translated_type"):
        sdn_type = types.new_types[name].translated_type.WhichOneof("sdn_type")
        return width, "string" if sdn_type == "sdn_string" else "number"
    return width, None if width > 0 else "number"


_Identified = TypeVar("_Identified", P4InfoField, MatchField)
_Spec = TypeVar(
    "_Spec",
    ActionSpec,
    ArraySpec,
    DigestSpec,
    MeterSpec,
    ProfileSpec,
    RegisterSpec,
    TableSpec,
    ValueSetSpec,
)


def _unique(fields: Iterable[_Identified], where: str) -> tuple[_Identified, ...]:
    result = tuple(fields)
    ids = [field.id for field in result]
    for field in result:
        if field.id == 0 or ids.count(field.id) > 1:
            raise P4InfoError(f"id {field.id} of '{field.name}' of {where} is zero or used twice")
    return result


def _fitted(fields: tuple[_Identified, ...], widths: Mapping[str, int]) -> tuple[_Identified, ...]:
    return tuple(
        replace(field, width=widths.get(field.name, field.width)) if field.translation else field
        for field in fields
    )


def _by_id(specs: Iterable[_Spec]) -> dict[int, _Spec]:
    return {spec.id: spec for spec in specs}


def _parse_array(message: Any) -> ArraySpec:
    return ArraySpec(message.preamble.id, message.preamble.name, message.size)


def _parse_register(message: Any, types: Any) -> RegisterSpec:
    spec = message.type_spec
    while spec.WhichOneof("type_spec") == "new_type":
        spec = types.new_types[spec.new_type.name].original_type
    kind = spec.WhichOneof("type_spec")
    field: Literal["bitstring", "enum_value"] | None = None
    width, signed = 0, False
    if kind == "serializable_enum":
        field = "enum_value"
        width = types.serializable_enums[spec.serializable_enum.name].underlying_type.bitwidth
    elif kind == "bitstring" and spec.bitstring.WhichOneof("type_spec") in ("bit", "int"):
        field = "bitstring"
        signed = spec.bitstring.HasField("int")
        width = (spec.bitstring.int if signed else spec.bitstring.bit).bitwidth
    preamble = message.preamble
    return RegisterSpec(preamble.id, preamble.name, message.size, field, width, signed)


def _parse_action(message: Any, types: Any) -> ActionSpec:
    name = message.preamble.name
    params = _unique(
        (P4InfoField(p.id, p.name, *_width(p, types)) for p in message.params),
        f"action '{name}'",
    )
    return ActionSpec(message.preamble.id, name, params)


def _parse_value_set(message: Any, types: Any) -> ValueSetSpec:
    name = message.preamble.name
    where = f"value set '{name}'"
    fields = _unique((_match_field(field, where, types) for field in message.match), where)
    return ValueSetSpec(message.preamble.id, name, fields, message.size)


def _match_field(message: Any, where: str, types: Any) -> MatchField:
    kind = _MATCH_KINDS.get(message.match_type)
    if kind is None:
        what = message.other_match_type or p4info_pb2.MatchField.MatchType.Name(message.match_type)
        raise P4InfoError(
            f"match field '{message.name}' of {where} is of kind {what}, which is not "
            f"supported; supported are {', '.join(_MATCH_KINDS.values())}"
        )
    width, translation = _width(message, types)
    return MatchField(message.id, message.name, width, kind, translation)


def _parse_header(message: Any) -> PacketHeader:
    name = message.preamble.name
    fields = (P4InfoField(f.id, f.name, int(f.bitwidth)) for f in message.metadata)
    strings = tuple(field.name for field in message.metadata if field.bitwidth <= 0)
    return PacketHeader(_unique(fields, f"header '{name}'"), strings)


def _parse_table(
    message: Any,
    actions: Mapping[int, ActionSpec],
    direct_counters: set[int],
    profiles: Mapping[int, ProfileSpec],
    direct_meters: Mapping[int, MeterSpec],
    types: Any,
) -> TableSpec:
    name = message.preamble.name
    profile = profiles.get(message.implementation_id)
    if profile is None and message.implementation_id:
        raise P4InfoError(
            f"table '{name}' refers to action profile {message.implementation_id:#x}, "
            "which does not exist"
        )
    where = f"table '{name}'"
    if message.HasField("other_properties"):
        raise unsupported(f"p4info: other_properties of {where} is not supported")
    fields = _unique((_match_field(field, where, types) for field in message.match_fields), where)
    uses = {}
    for ref in message.action_refs:
        action = actions.get(ref.id)
        if action is None:
            raise P4InfoError(f"table '{name}' refers to action {ref.id:#x}, which does not exist")
        if ref.scope not in _SCOPES:
            scope = "GROUP_ACTION" if ref.scope == _GROUP_ACTION else ref.scope
            raise unsupported(
                f"p4info: scope {scope} of action '{action.name}' in {where} is not supported"
            )
        uses[ref.id] = ActionUse(
            action,
            in_entries=ref.scope != p4info_pb2.ActionRef.DEFAULT_ONLY,
            as_default=ref.scope != p4info_pb2.ActionRef.TABLE_ONLY,
        )
    return TableSpec(
        id=message.preamble.id,
        name=name,
        fields=fields,
        actions=uses,
        size=message.size,
        is_const=message.is_const_table,
        # P4Runtime: the default entry of an indirect table is a constant NoAction.
        has_const_default=message.const_default_action_id != 0 or profile is not None,
        initial_default=_initial_default(message.initial_default_action, actions),
        has_direct_counter=any(id_ in direct_counters for id_ in message.direct_resource_ids),
        supports_idle_timeout=(
            message.idle_timeout_behavior == p4info_pb2.Table.IdleTimeoutBehavior.NOTIFY_CONTROL
        ),
        profile=profile,
        meter=next(filter(None, map(direct_meters.get, message.direct_resource_ids)), None),
    )


def _initial_default(
    message: Any, actions: Mapping[int, ActionSpec]
) -> tuple[str, tuple[int, ...]] | None:
    action = actions.get(message.action_id)
    if action is None:
        return None
    values = {a.param_id: int.from_bytes(a.value, "big") for a in message.arguments}
    return action.name, tuple(values.get(param.id, 0) for param in action.params)


def _parse_meter(message: Any, size: int) -> MeterSpec:
    name = message.preamble.name
    if message.spec.type != p4info_pb2.MeterSpec.TWO_RATE_THREE_COLOR:
        raise P4InfoError(f"meter '{name}' is not of two rates and three colours: not supported")
    in_bytes = message.spec.unit == p4info_pb2.MeterSpec.BYTES
    return MeterSpec(message.preamble.id, name, size, in_bytes)


def _parse_digest(message: Any, type_info: Any) -> DigestSpec:
    name = message.preamble.name
    shape = message.type_spec.WhichOneof("type_spec")
    if shape == "struct":
        members = type_info.structs[message.type_spec.struct.name].members
        parts = [member.type_spec for member in members]
    elif shape == "tuple":
        parts = list(message.type_spec.tuple.members)
    elif shape == "bitstring":
        parts = [message.type_spec]
    else:
        raise P4InfoError(f"digest '{name}' is of kind {shape}, which is not supported")
    fields = []
    for part in parts:
        kind = part.bitstring.WhichOneof("type_spec")
        if kind not in ("bit", "int"):
            raise P4InfoError(f"digest '{name}' has a part that is not bit<> or int<>")
        fields.append((getattr(part.bitstring, kind).bitwidth, kind == "int"))
    return DigestSpec(message.preamble.id, name, shape, tuple(fields), name)


def _meter_differences(p4info: P4Info, pipeline: Pipeline) -> Iterator[str]:
    for spec in p4info.meters.values():
        loaded = pipeline.meters.get(spec.name)
        if loaded is not None and (loaded.size, loaded.in_bytes) != (spec.size, spec.in_bytes):
            yield f"meter '{spec.name}' is not the same in the program"
    for table in p4info.tables.values():
        if table.name not in pipeline.tables:
            continue
        meter = next((m for m in pipeline.meters.values() if m.table == table.name), None)
        if (table.meter.name if table.meter else None) != (meter.name if meter else None):
            yield f"the direct meter of table '{table.name}' is another one in the program"
        if table.supports_idle_timeout and table.name not in pipeline.idle:
            yield f"table '{table.name}' has an idle timeout only in the P4Info"


def _parse_profile(message: Any) -> ProfileSpec:
    name = message.preamble.name
    if getattr(message, "weights_disallowed", False):  # older stubs do not have it
        raise unsupported(f"p4info: weights_disallowed of action profile '{name}' is not supported")
    return ProfileSpec(
        id=message.preamble.id,
        name=name,
        has_selector=message.with_selector,
        size=message.size,
        max_group_size=message.max_group_size,
        counts_members=message.WhichOneof("selector_size_semantics") == "sum_of_members",
        max_member_weight=message.sum_of_members.max_member_weight,
    )


def _profile_differences(spec: TableSpec, table: Table) -> Iterator[str]:
    said = spec.profile.name if spec.profile is not None else None
    loaded = table.profile.name if isinstance(table, IndirectTable) else None
    if said != loaded:
        yield (
            f"the action profile of table '{spec.name}' is {said or 'none'} in the P4Info and "
            f"{loaded or 'none'} in the program"
        )


def _table_differences(spec: TableSpec, table: Table) -> Iterator[str]:
    where = f"table '{spec.name}'"
    said, loaded = state_key(spec.fields), list(table.key)
    if said != loaded:
        yield (
            f"the key of {where} is {_key_text(said)} in the P4Info "
            f"and {_key_text(loaded)} in the program"
        )
    for use in spec.actions.values():
        action = table.actions.get(use.action.name)
        if action is None:
            yield f"action '{use.action.name}' of {where} is not in the program"
            continue
        params = [(p.name, p.width) for p in use.action.params]
        if params != list(action.params):
            yield (
                f"the parameters of action '{use.action.name}' are {_params_text(params)} in the "
                f"P4Info and {_params_text(action.params)} in the program"
            )
    if spec.has_direct_counter != table.has_direct_counter:
        owner = "P4Info" if spec.has_direct_counter else "program"
        yield f"{where} has a direct counter only in the {owner}"
    yield from _profile_differences(spec, table)


def _key_text(key: Iterable[MatchKey]) -> str:
    return "(" + ", ".join(f"{part.name}: {part.kind} bit<{part.width}>" for part in key) + ")"


def _params_text(params: Iterable[tuple[str, int]]) -> str:
    return "(" + ", ".join(f"bit<{width}> {name}" for name, width in params) + ")"


def names(items: Iterable[str]) -> str:
    """Return a short list of names for a message."""
    listed = [f"'{item}'" for item in items]
    if not listed:
        return "none"
    if len(listed) > _NAMES_SHOWN:
        return ", ".join(listed[:_NAMES_SHOWN]) + f" and {len(listed) - _NAMES_SHOWN} more"
    return ", ".join(listed)
