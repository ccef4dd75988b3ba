# SPDX-License-Identifier: Apache-2.0
"""What Python reads in the C headers is what the compiler makes of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from p4reduce_native.c_header import CHeader, field_types
from p4reduce_native.compile import compile_shared
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import CSRC, load, runtime
from p4reduce_native.link import LinkKind
from p4reduce_native.loop import PortEvent, PortKind, Reason

C_TYPES = {
    "?": "bool",
    "B": "uint8_t",
    "H": "uint16_t",
    "i": "int32_t",
    "I": "uint32_t",
    "l": "int64_t",
    "L": "uint64_t",
    "f": "float",
    "d": "double",
}
"""By `_type_` of ctypes; all others are pointers."""

HEADERS = {
    "worker/iteration.h": (14, 60),
    "worker/compress.h": (0, 9),
    "link/link.h": (3, 20),
    "loop/loop.h": (5, 60),
    "loop/poll_backoff.h": (1, 4),
    "p4/control.h": (5, 20),
}
"""With the least number of structures and of functions that can be read."""


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    try:
        runtime()
    except NativeUnavailableError as error:
        pytest.skip(str(error))


def readable(header: CHeader) -> list[type[ctypes.Structure]]:
    """Return all structures but those that only C can use."""
    found = []
    for name in header.structures:
        with contextlib.suppress(KeyError, ValueError):
            found.append(header.structure(name))
    return found


def table(path: str, text: str, entries: list[str]) -> list[int]:
    """Compile a table of numbers; return it."""
    source = f"""
        #include <stdbool.h>
        #include <stddef.h>
        #include "{path}"
        {text}
        const long long numbers[] = {{ {", ".join(entries)} }};
    """
    flags = ("-Werror",)
    compiled = compile_shared(
        "c_header", {"layout.c": source}, include=[CSRC, CSRC / "p4"], flags=flags
    )
    return list((ctypes.c_longlong * len(entries)).in_dll(load(compiled), "numbers"))


def length_of(type_: Any) -> int | None:
    """Of an array."""
    return type_._length_ if issubclass(type_, ctypes.Array) else None


def of_type(place: str, type_: Any) -> str:
    """Return C whose value is 1 if a place has the type that ctypes takes it for, else 0."""
    if issubclass(type_, ctypes.Array):
        return of_type(f"{place}[0]", type_._type_)
    if issubclass(type_, ctypes.Structure):
        return f"_Generic({place}, struct {type_.__name__}: 1, default: 0)"
    code = getattr(type_, "_type_", "P")  # private: a documented name of ctypes
    if code in C_TYPES:
        return f"_Generic({place}, {C_TYPES[code]}: 1, default: 0)"
    return f"_Generic({place}, {', '.join(f'{one}: 0' for one in C_TYPES.values())}, default: 1)"


@pytest.mark.parametrize("path", HEADERS)
def test_the_compiler_has_the_same_layout(path: str) -> None:
    text, entries, expected, places = "", [], [], []
    structures = readable(CHeader(path))
    assert len(structures) >= HEADERS[path][0]
    for structure in structures:
        name, types = f"struct {structure.__name__}", field_types(structure)
        places.append(name)
        entries.append(f"sizeof({name})")
        expected.append(ctypes.sizeof(structure))
        for field, type_ in types.items():
            at, place = getattr(structure, field), f"(({name} *)0)->{field}"
            places += [f"{name}.{field}: {what}" for what in ("offset", "size", "type")]
            size = "0" if length_of(type_) == 0 else f"sizeof({place})"
            entries += [f"offsetof({name}, {field})", size, of_type(place, type_)]
            expected += [at.offset, at.size, 1]
        # An error where there are more fields, or fewer.
        given = [
            "{}" if issubclass(type_, (ctypes.Array, ctypes.Structure)) else "0"
            for type_ in types.values()
            if length_of(type_) != 0
        ]
        text += f"const {name} all_of_{structure.__name__} = {{ {', '.join(given)} }};\n"
    found = table(path, text, entries)
    assert dict(zip(places, found, strict=True)) == dict(zip(places, expected, strict=True))


@pytest.mark.parametrize("path", HEADERS)
def test_the_compiler_has_the_same_constants(path: str) -> None:
    constants = CHeader(path).constants
    assert table(path, "", [f"(long long){name}" for name in constants]) == [*constants.values()]


def spelled(type_: Any, text: str) -> str:
    """Return a type in C: a pointer as the header has it, as ctypes does not know to what."""
    if type_ is None:
        return "void"
    return text if type_ is ctypes.c_void_p else C_TYPES[type_._type_]


@pytest.mark.parametrize("path", HEADERS)
def test_the_compiler_has_the_same_functions(path: str) -> None:
    header, entries, read = CHeader(path), [], []
    for name, (result, parameters) in header.prototypes.items():
        with contextlib.suppress(KeyError, ValueError):
            type_, types = header.signature(name)
            texts = parameters.split(", ") if types else []
            given = (spelled(*one) for one in zip(types, texts, strict=True))
            function = f"{spelled(type_, result)}({', '.join(given) or 'void'})"
            entries.append(f"__builtin_types_compatible_p(__typeof__({name}), {function})")
            read.append(name)
    assert len(read) >= HEADERS[path][1]
    found = table(path, "", entries)
    assert dict(zip(read, found, strict=True)) == dict.fromkeys(read, 1)


@pytest.mark.parametrize(
    ("name", "prefix", "kind"),
    [
        ("p4r_link_kind", "P4R_LINK_", LinkKind),
        ("p4r_loop_reason", "P4R_LOOP_", Reason),
        ("p4r_port_event", "P4R_EVENT_", PortEvent),
        ("p4r_port_type", "P4R_", PortKind),
    ],
)
def test_python_has_all_members_of_an_enumeration(
    name: str, prefix: str, kind: type[IntEnum]
) -> None:
    members = CHeader("loop/loop.h").enumerations[name].copy()
    members.pop("P4R_PORT_TYPES", None)  # how many there are
    assert {prefix + member.name: member.value for member in kind} == members


@pytest.mark.parametrize(
    ("declared", "result", "parameters"),
    [
        ("void p4r_some(void);", None, []),
        ("int p4r_some(int number, uint8_t);", ctypes.c_int, [ctypes.c_int, ctypes.c_uint8]),
        ("bool p4r_some(bool is_so);", ctypes.c_bool, [ctypes.c_bool]),
        (
            "double p4r_some(double at, size_t bytes,\n                int64_t *numbers);",
            ctypes.c_double,
            [ctypes.c_double, ctypes.c_size_t, ctypes.c_void_p],
        ),
        ("const uint64_t *p4r_some(void *any);", ctypes.c_void_p, [ctypes.c_void_p]),
        (
            "struct p4r_a *p4r_some(const struct p4r_a *, struct p4r_a *const *all);",
            ctypes.c_void_p,
            [ctypes.c_void_p, ctypes.c_void_p],
        ),
        ("uint32_t p4r_some(p4r_call call);", ctypes.c_uint32, [ctypes.c_void_p]),
        ("/* p4r_some(1); */\nvoid p4r_some(/* none */ void);", None, []),
    ],
)
def test_a_prototype(declared: str, result: Any, parameters: list[Any], tmp_path: Path) -> None:
    (tmp_path / "some.h").write_text(f"typedef int (*p4r_call)(int number);\n{declared}\n")
    assert CHeader("some.h", tmp_path).signature("p4r_some") == (result, parameters)


@pytest.mark.parametrize(
    "declared",
    [
        "void p4r_some(unsigned number);",
        "void p4r_some(unsigned int number);",
        "void p4r_some(float number);",
        "void p4r_some(enum p4r_kind kind);",
        "void p4r_some(struct p4r_by_value value);",
        "void p4r_some(struct p4r_by_value);",
        "void p4r_some(p4r_unknown value);",
        "void p4r_some(int numbers[4]);",
        "void p4r_some(int *places[4]);",
        "void p4r_some(int (*call)(int number));",
        "void p4r_some(int first, ...);",
        "void p4r_some();",
        "struct p4r_by_value p4r_some(void);",
        "unsigned p4r_some(void);",
        "unsigned int p4r_some(void);",
        "const int p4r_some(void);",
        "void p4r_some(void) __attribute__((cold));",
        "static inline int p4r_some(void)\n{\n    return p4r_other(1);\n}",
        "int (*p4r_some(void))(int number);",
    ],
)
def test_a_prototype_that_cannot_be_read_is_an_error(declared: str, tmp_path: Path) -> None:
    (tmp_path / "some.h").write_text(f"{declared}\n")
    with pytest.raises((ValueError, KeyError)):
        CHeader("some.h", tmp_path).signature("p4r_some")


def test_an_enumeration(tmp_path: Path) -> None:
    text = "enum p4r_one { P4R_A, P4R_B = 0x10, P4R_C, P4R_D = -1 };\nenum {\n    P4R_E = 3,\n};\n"
    (tmp_path / "some.h").write_text(text)
    header = CHeader("some.h", tmp_path)
    assert header.enumerations == {"p4r_one": {"P4R_A": 0, "P4R_B": 16, "P4R_C": 17, "P4R_D": -1}}
    assert header.constants == header.enumerations["p4r_one"] | {"P4R_E": 3}


@pytest.mark.parametrize("member", ["P4R_B = P4R_A", "P4R_B = P4R_A + 1", "P4R_B = 1 << 3"])
def test_a_member_that_cannot_be_read_is_an_error(member: str, tmp_path: Path) -> None:
    (tmp_path / "some.h").write_text(f"enum p4r_one {{ P4R_A, {member} }};\n")
    with pytest.raises((ValueError, KeyError)):
        CHeader("some.h", tmp_path).enumerations["p4r_one"]


def test_only_functions_that_are_declared_can_be_called() -> None:
    library = runtime()
    header = CHeader("worker/link_lock.h")
    functions = header.functions(library)
    lock = header.structure("p4r_link_lock")(state=header.constants["P4R_AWAITED"])
    assert functions.p4r_link_lock_is_awaited(ctypes.byref(lock)) == 1
    assert library.p4r_link_lock_is_awaited.argtypes is None  # of the header's alone
    with pytest.raises(ctypes.ArgumentError):
        functions.p4r_link_lock_is_awaited(1.0)
    with pytest.raises(TypeError):
        functions.p4r_link_lock_is_awaited()
    assert library["p4r_link_free"]
    with pytest.raises(AttributeError, match="p4r_link_free"):
        _ = functions.p4r_link_free


@pytest.mark.parametrize(
    "field",
    [
        "uint32_t bits : 3;",
        "volatile uint32_t often;",
        "unsigned number;",
        "unsigned int number;",
        "uint32_t rows[UNKNOWN];",
        "enum p4r_kind kind;",
        "uint32_t table[TWO][TWO];",
        "union p4r_either either;",
        "struct { int inner; } inner;",
        "void nothing;",
        "#ifdef WITH\n    uint32_t sometimes;\n#endif",
        "int (*call)(struct p4r_by_value value);",
        "int (**calls)(int);",
    ],
)
def test_a_field_that_cannot_be_read_is_an_error(field: str, tmp_path: Path) -> None:
    text = f"#define TWO 2\nstruct p4r_some {{\n    uint32_t first;\n    {field}\n}};\n"
    (tmp_path / "some.h").write_text(text)
    header = CHeader("some.h", tmp_path)
    with pytest.raises((ValueError, KeyError)):
        header.structure("p4r_some")


def test_what_an_option_may_set_is_no_constant() -> None:
    assert "P4R_PAYLOAD_BYTES" not in CHeader("worker/header.h").constants


def test_a_header_that_has_changed_since_is_found(tmp_path: Path) -> None:
    shutil.copytree(CSRC, tmp_path / "csrc")
    header = CHeader("worker/iteration.h", tmp_path / "csrc")
    header.check_unchanged()
    changed = tmp_path / "csrc/worker/worker.h"
    changed.write_text(changed.read_text() + "/* later */\n")
    with pytest.raises(NativeUnavailableError, match=r"different versions: .*worker\.h"):
        header.check_unchanged()
    changed.unlink()
    with pytest.raises(NativeUnavailableError, match=r"different versions: .*worker\.h"):
        header.check_unchanged()


def test_a_package_that_was_replaced_meanwhile_is_refused(tmp_path: Path) -> None:
    shutil.copytree(CSRC.parent, tmp_path / "p4reduce_native")
    program = """
        from p4reduce import machine_code
        from p4reduce_native.library import CSRC
        changed = CSRC / "worker/worker.h"
        changed.write_text(changed.read_text().replace("int64_t full;", "int32_t full;"))
        machine_code.engine_library()
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(map(str.strip, program.splitlines()))],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{tmp_path}" in done.stderr
    assert "different versions" in done.stderr
