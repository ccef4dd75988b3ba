# SPDX-License-Identifier: Apache-2.0
"""What entities of several kinds have in common: an object by its id, its cells, and what nobody
supports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import invalid, out_of_range, unsupported
from p4reduce_switch.p4runtime.entities.kinds import Query
from p4reduce_switch.p4runtime.p4info import names

BYTES_PER_MESSAGE = 1 << 20
"""Of what the server sends at once: gRPC's clients take 4 MiB unless told otherwise."""
_MOST_PER_MESSAGE = 256

_Update = p4runtime_pb2.Update


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class _Array(_Named, Protocol):
    @property
    def id(self) -> int: ...

    @property
    def size(self) -> int: ...


class _Sized(Protocol):
    def ByteSize(self) -> int: ...  # noqa: N802


_Message = TypeVar("_Message", bound=_Sized)
_Spec = TypeVar("_Spec", bound=_Named)
_ArraySpec = TypeVar("_ArraySpec", bound=_Array)


def in_parts(messages: Iterable[_Message]) -> Iterator[list[_Message]]:
    """Yield messages in order, as many at once as any client takes; one that is too long alone."""
    part: list[_Message] = []
    size = 0
    for message in messages:
        more = message.ByteSize()
        if part and (size + more > BYTES_PER_MESSAGE or len(part) == _MOST_PER_MESSAGE):
            yield part
            part, size = [], 0
        part.append(message)
        size += more
    if part:
        yield part


def shown_of(differences: Sequence[str], most: int) -> str:
    """Return the first differences for a message, and how many more there are."""
    more = len(differences) - most
    return "; ".join(differences[:most]) + (f"; and {more} more differences" if more > 0 else "")


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


def refuse_unsupported(message: Any, fields: Collection[str], where: str) -> None:
    """Refuse fields that this server does not support. Older stubs do not have them all."""
    for field, _ in message.ListFields():
        if field.name in fields:
            raise unsupported(f"{field.name} of {where} is not supported")


def refuse_unknown(message: Any) -> None:
    """Refuse fields that the installed stubs do not know: a newer API's. They would be lost."""
    size = message.ByteSize()
    message.DiscardUnknownFields()  # cheaper than in a copy, and a refused message has no use
    if message.ByteSize() != size:
        raise unsupported(
            "the message has a field of a newer version of the P4Runtime API, which this switch "
            "does not know"
        )


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
