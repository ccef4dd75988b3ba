# SPDX-License-Identifier: Apache-2.0
"""Structures, functions and constants of the C headers in `csrc/`, read from their text.

So what C and Python share is written once, in C. What is read is a small part of C: fields of the
types below, pointers, arrays, other structures, and pointers to functions; parameters and results
of these types, and pointers. Anything else is an error where it is asked for, so nothing is left
out. ctypes lays the fields out as the platform's C does; tests/native/test_c_header.py compares
that, and the types of functions, with what a compiler makes of them.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from sys import intern
from typing import Any

from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import CSRC

_FIXED = ("int32", "int64", "uint8", "uint16", "uint32", "uint64")
_OTHERS = ("bool", "double", "int", "size_t")
_TYPES: dict[str, Any] = {f"{width}_t": getattr(ctypes, f"c_{width}") for width in _FIXED}
_TYPES |= {name: getattr(ctypes, f"c_{name}") for name in _OTHERS}
# In a file each begins with a character to search for, as `(?m)^` would take twice as long.
_COMMENT = re.compile(r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/")
_INCLUDE = re.compile(r'\n#include "(.+)"')
_OPTION = re.compile(r"\n#ifndef (\w+)")
_DEFINE = re.compile(r"(?m)\n#define (\w+) \(?(-?(?:0x[0-9a-f]+|[0-9]+))u?\)? *$")
_ENUMERATION = re.compile(r"\nenum(?: (\w+))? \{([\w\s=,-]+)\};")
_STRUCTURE = re.compile(r"(?s)\nstruct (\w+) \{(.*?)\n\};")
_CALLBACK = re.compile(r"\ntypedef (\w+ \(\*(\w+)\)\([^;]*\));")
_PROTOTYPE = re.compile(r"\n((?:const )?(?:struct )?\w+ \**)(\w+)\(([^;{}]*)\);")
_FUNCTION = re.compile(r"(\w+) \(\*(\w+)\)\((.*)\)")
_POINTER = re.compile(r"(?:const )?(?:struct )?\w+ \*(?:\*|const \*)*\w*")
_PARAMETER = re.compile(r"(\w+)(?: \w+)?")
_FIELDS = re.compile(r"(?:const )?((?:struct )?\w+) (.+)")
_FIELD = re.compile(r"(\**)(\w+)(?:\[(\w*)\])?")


class CHeader:
    """A header file, with those that it includes.

    Args:
        path: below `directory`, such as `worker/worker.h`.
        directory: where paths begin, also those of `#include`.

    Attributes:
        constants: integers by name: those of `#define` with nothing but a number, and of
            enumerations. Those that a compiler's option may set are left out.
        enumerations: the members of each one that has a name, with their numbers.
        structures: the text of each structure's fields, by its name.
        prototypes: the texts of each function's result and parameters, by its name.
    """

    def __init__(self, path: str, directory: Path = CSRC) -> None:
        self._texts: dict[Path, str] = {}
        self._read(directory / path, directory)
        text = _COMMENT.sub("", "\n".join(("", *self._texts.values())))
        self.constants = dict(_constants(text))
        self.enumerations: dict[str, dict[str, int]] = {}
        for name, members in _ENUMERATION.findall(text):
            values = dict(_members(members))
            self.constants |= values
            if name:
                self.enumerations[name] = values
        self.structures = {name: _words(body) for name, body in _STRUCTURE.findall(text)}
        self.prototypes = {
            name: (result.rstrip(), _words(parameters))
            for result, name, parameters in _PROTOTYPE.findall(text)
        }
        self._callbacks = {name: _words(declared) for declared, name in _CALLBACK.findall(text)}
        self._made: dict[str, type[ctypes.Structure]] = {}

    def _read(self, path: Path, directory: Path) -> None:
        self._texts[path] = text = _text_of(path)
        for name in _INCLUDE.findall(text):
            beside = path.parent / name
            included = (beside if beside.exists() else directory / name).resolve()
            if included not in self._texts:
                self._read(included, directory)

    def check_unchanged(self) -> None:
        """Compare the files with what was read of them.

        Raises:
            NativeUnavailableError: one has changed, so a library that is loaded now would not fit.
        """
        for path, text in self._texts.items():
            if not path.exists() or path.read_text("utf-8") != text:
                raise NativeUnavailableError(
                    "the library and the package have different versions: "
                    f"{path} has changed since this process read it"
                )

    def structure(self, name: str) -> type[ctypes.Structure]:
        """Return a structure; all pointers in it are `c_void_p`, but those to functions.

        Raises:
            KeyError: nothing is known here of it, or of the type of a field.
            ValueError: a field is not of the part of C that is read.
        """
        if name not in self._made:
            declared = self.structures[name].removesuffix(";").split("; ")
            fields = tuple(field for one in declared for field in self._fields(one))
            self._made[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        return self._made[name]

    def callback(self, name: str) -> Any:
        """Return the type of a pointer to a function, by the name of its `typedef`.

        Raises:
            KeyError, ValueError: as of `signature`.
        """
        return self._function(self._callbacks[name])[1]

    def signature(self, name: str) -> tuple[Any, list[Any]]:
        """Return the types of a function's result and parameters.

        All pointers are `c_void_p`, also those to functions. For such a parameter a caller passes
        an address, bytes, an array, a function, `ctypes.byref` of something, or None.

        Raises:
            KeyError: nothing is known here of it, or of one of these types.
            ValueError: a parameter is not of the part of C that is read.
        """
        return self._signature(*self.prototypes[name])

    def functions(self, library: ctypes.CDLL) -> Functions:
        """Return the functions of a library that the header declares."""
        return Functions(self, library)

    def _fields(self, declared: str) -> Iterator[tuple[str, Any]]:
        if "(" in declared:
            yield self._function(declared)
            return
        base, parts = _groups(_FIELDS, declared)
        for part in parts.split(", "):
            pointer, name, size = _groups(_FIELD, part)
            type_ = ctypes.c_void_p if pointer else self._type(base)
            if size is not None:
                type_ *= self.constants[size] if size else 0  # none: it ends the structure
            yield intern(name), type_  # as in a program's text: else each use has to look it up

    def _type(self, name: str) -> Any:
        if name.startswith("struct "):
            return self.structure(name.removeprefix("struct "))
        return self.callback(name) if name in self._callbacks else _TYPES[name]

    def _function(self, declared: str) -> tuple[str, Any]:
        result, name, parameters = _groups(_FUNCTION, declared)
        type_, types = self._signature(result, parameters)
        return name, ctypes.CFUNCTYPE(type_, *types)

    def _signature(self, result: str, parameters: str) -> tuple[Any, list[Any]]:
        declared = () if parameters == "void" else parameters.split(", ")
        type_ = None if result == "void" else self._passed(result)
        return type_, [self._passed(one) for one in declared]

    def _passed(self, declared: str) -> Any:
        if _POINTER.fullmatch(declared):
            return ctypes.c_void_p
        (name,) = _groups(_PARAMETER, declared)
        return ctypes.c_void_p if name in self._callbacks else _TYPES[name]


class Functions:
    """The functions of a library that a header declares, as attributes.

    Each gets the types of its declaration when it is first asked for. Raises AttributeError if the
    library does not have it or the header does not declare it; else as `CHeader.signature`.
    """

    def __init__(self, header: CHeader, library: ctypes.CDLL) -> None:
        self._header, self._library = header, library

    def __getattr__(self, name: str) -> Any:
        if name not in self._header.prototypes:
            raise AttributeError(name, name=name, obj=self)
        function = self._library[name]  # a new one, so no thread can call it before it has types
        function.restype, function.argtypes = self._header.signature(name)
        setattr(self, name, function)  # where Python finds it from now on
        return function


def field_types(structure: type[ctypes.Structure]) -> dict[str, Any]:
    """Return the types of a structure's fields, in order."""
    return {name: type_ for name, type_, *_ in structure._fields_}


@functools.cache
def _text_of(path: Path) -> str:
    """All headers of a process see the same text of a file, which is read once."""
    return path.read_text("utf-8")


def _constants(text: str) -> Iterator[tuple[str, int]]:
    options = set(_OPTION.findall(text))
    for name, number in _DEFINE.findall(text):
        if name not in options:
            yield name, int(number, 0)


def _members(text: str) -> Iterator[tuple[str, int]]:
    value = -1
    for member in _words(text).removesuffix(",").split(", "):
        name, _, given = member.partition(" = ")
        value = int(given, 0) if given else value + 1
        yield name, value


def _words(text: str) -> str:
    return " ".join(text.split())


def _groups(pattern: re.Pattern[str], declared: str) -> Sequence[str]:
    found = pattern.fullmatch(declared)
    if found is None:
        raise ValueError(f"C that cannot be read here: '{declared}'")
    return found.groups()
