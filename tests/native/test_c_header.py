# SPDX-License-Identifier: Apache-2.0
"""What Python reads in the C headers is what the compiler makes of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from p4reduce_native.c_header import CHeader, field_types
from p4reduce_native.compile import compile_shared
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import CSRC, load, runtime

C_TYPES = {
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
    "worker/iteration.h": 14,
    "link/link.h": 3,
    "loop/loop.h": 5,
    "loop/poll_backoff.h": 1,
    "p4/control.h": 5,
}
"""With the least number of structures that can be read."""


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
    assert len(structures) >= HEADERS[path]
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
