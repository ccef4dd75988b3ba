# SPDX-License-Identifier: Apache-2.0
"""Dataclasses as JSON's plain data, and back, by their type annotations.

Supports numbers, text, bytes, bool, enums, ranges, lists, dicts with integer keys, dataclasses, and
each of these or None. Fields marked `transient` are left out. A missing field gets its default, so
fields with a default can be added without a new format.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")

TRANSIENT = {"transient": True}  # metadata of a field that does not outlive the process


class CodecError(ValueError):
    """The data does not fit the type. The message says where."""


def encode(value: Any) -> Any:
    """Return a dataclass object as plain data."""
    type_: Any = type(value)
    return _encoder(type_)(value)


@functools.cache
def _encoder(type_: Any) -> Callable[[Any], Any]:
    """Return what makes plain data of a value of that type. Made once, as jobs are many."""
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if origin in (types.UnionType, typing.Union):
        inner = _encoder(_not_none(arguments))
        return lambda value: None if value is None else inner(value)
    if origin is list:
        each = _encoder(arguments[0])
        return lambda value: [each(item) for item in value]
    if origin is dict:
        each = _encoder(arguments[1])
        return lambda value: [[key, each(item)] for key, item in value.items()]
    if isinstance(type_, type) and dataclasses.is_dataclass(type_):
        fields = [(name, _encoder(inner)) for name, inner in _fields(type_).items()]
        return lambda value: {name: make(getattr(value, name)) for name, make in fields}
    if type_ is range:
        return lambda value: [value.start, value.stop]
    if type_ is bytes:
        return bytes.hex
    if issubclass(type_, enum.Enum):
        return operator.attrgetter("name")
    if type_ not in (int, float, str, bool):
        raise TypeError(f"{type_} cannot be encoded")
    return lambda value: value


def _not_none(arguments: tuple[Any, ...]) -> Any:
    [inner] = [argument for argument in arguments if argument is not type(None)]
    return inner


def decode(type_: type[_T], data: Any, where: str = "") -> _T:
    """Return the object of type `type_` that `data` encodes. Raises CodecError."""
    return typing.cast(_T, _decode(type_, data, where or type_.__name__))


def _decode(type_: Any, data: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if origin in (types.UnionType, typing.Union):
        return None if data is None else _decode(_not_none(arguments), data, where)
    if origin is list:
        return [_decode(arguments[0], item, where) for item in _list(data, where)]
    if origin is dict:
        pairs = [_list(pair, where, 2) for pair in _list(data, where)]
        key_type, value_type = arguments
        return {
            _decode(key_type, key, where): _decode(value_type, value, f"{where}[{key}]")
            for key, value in pairs
        }
    if dataclasses.is_dataclass(type_):
        return _decode_dataclass(type_, data, where)
    if type_ is range:
        start, stop = (_decode(int, item, where) for item in _list(data, where, 2))
        return range(start, stop)
    if isinstance(type_, type) and issubclass(type_, enum.Enum):
        if data not in type_.__members__:
            raise CodecError(f"{where} should be one of {', '.join(type_.__members__)}")
        return type_[data]
    if type_ is bytes:
        try:
            return bytes.fromhex(_plain(str, data, where))
        except ValueError:
            raise CodecError(f"{where} should be hexadecimal") from None
    return _plain(type_, data, where)


def _decode_dataclass(type_: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise CodecError(f"{where} should be an object")
    fields = _fields(type_)
    values = {
        name: _decode(fields[name], value, f"{where}.{name}")
        for name, value in data.items()
        if name in fields
    }
    try:
        return type_(**values)
    except TypeError as error:
        raise CodecError(f"{where}: {error}") from None


@functools.cache
def _fields(type_: type) -> dict[str, Any]:
    """Return the fields that are kept, with their types."""
    hints = typing.get_type_hints(type_)
    return {
        field.name: hints[field.name]
        for field in dataclasses.fields(type_)
        if not field.metadata.get("transient")
    }


def _list(data: Any, where: str, length: int | None = None) -> list[Any]:
    if not isinstance(data, list) or length not in (None, len(data)):
        raise CodecError(f"{where} should be a list" + (f" of {length}" if length else ""))
    return data


def _plain(type_: Any, data: Any, where: str) -> Any:
    # A bool is an int to Python, and JSON writes a whole float as one that is not.
    if type_ is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, type_) or isinstance(data, bool) is not (type_ is bool):
        raise CodecError(f"{where} should be of type {type_.__name__}")
    return data
