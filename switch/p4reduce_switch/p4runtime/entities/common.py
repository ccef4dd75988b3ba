# SPDX-License-Identifier: Apache-2.0
"""What entities of several kinds have in common: an object by its id, and its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import invalid, out_of_range
from p4reduce_switch.p4runtime.entities.kinds import Query
from p4reduce_switch.p4runtime.p4info import names

_Update = p4runtime_pb2.Update


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class _Array(_Named, Protocol):
    @property
    def id(self) -> int: ...

    @property
    def size(self) -> int: ...


_Spec = TypeVar("_Spec", bound=_Named)
_ArraySpec = TypeVar("_ArraySpec", bound=_Array)


def find(specs: Mapping[int, _Spec], number: int, kind: str) -> _Spec:
    """The P4Info's object of an id, or INVALID_ARGUMENT."""
    spec = specs.get(number)
    if spec is None:
        raise invalid(
            f"this pipeline has no {kind} with id {number:#x}; "
            f"its {kind}s are {names(spec.name for spec in specs.values())}"
        )
    return spec


def selected(specs: Mapping[int, _Spec], number: int, kind: str) -> list[_Spec]:
    """What a read asks for: the object of an id, or for id 0 all objects."""
    return [find(specs, number, kind)] if number else list(specs.values())


def only_modify(update_type: int, what: str) -> None:
    """Refuse INSERT and DELETE of objects that always exist."""
    if update_type != _Update.MODIFY:
        raise invalid(f"{_Update.Type.Name(update_type)} of {what}: it can only be MODIFYed")


def indices(what: str, size: int, message: Any) -> range:
    """Return the cells that a message is about: one, or all. `what` has them."""
    if not message.HasField("index"):
        return range(size)
    index = message.index.index
    if index < 0:
        raise invalid(f"index {index} of {what} is negative")
    if index >= size:
        raise out_of_range(f"index {index} of {what} is not within 0 to {size - 1}")
    return range(index, index + 1)


def query_cells(
    kind: str,
    specs: Iterable[_ArraySpec],
    message: Any,
    read: Callable[[_ArraySpec, int], Any],
    fill: Callable[[Any, Any], None],
) -> Query:
    """One cell, all cells of an array, or all of all arrays of a kind.

    Args:
        kind: as the fields are called: "counter" for `counter_entry` and `counter_id`.
        specs: the arrays.
        message: has the index.
        read: gives the value of a cell.
        fill: puts such a value into a `CounterEntry` or the like.
    """
    field, number_field = f"{kind}_entry", f"{kind}_id"
    wanted = [(spec, indices(f"{kind} '{spec.name}'", spec.size, message)) for spec in specs]

    def snapshot() -> list[Any]:
        return [(spec.id, cell, read(spec, cell)) for spec, cells in wanted for cell in cells]

    def encode(row: Any) -> Any:
        number, cell, value = row
        entity = p4runtime_pb2.Entity()
        out = getattr(entity, field)
        setattr(out, number_field, number)
        out.index.index = cell
        out.index.SetInParent()
        fill(value, out)
        return entity

    return Query(snapshot, encode)
