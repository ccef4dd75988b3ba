# SPDX-License-Identifier: Apache-2.0
"""What C and Python both see lies where both look for it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator

import pytest
from p4reduce import machine_code
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import CSRC, runtime

pytestmark = pytest.mark.skipif(
    machine_code.native_library() is None, reason="there is no machine code here"
)

HEADERS = ("worker.h", "iteration.h", "link_lock.h", "receive_backoff.h")


def structures() -> Iterator[str]:
    for header in HEADERS:
        text = (CSRC / "worker" / header).read_text()
        yield from re.findall(r"^struct (\w+) \{", text, re.MULTILINE)


def test_both_sides_agree() -> None:
    assert machine_code.layouts_there(runtime()) == machine_code.layouts_here()


def test_all_structures_of_the_headers_are_compared() -> None:
    assert set(structures()) - {"p4r_layout"} == set(machine_code.SHARED)


@pytest.mark.parametrize(
    "fields",
    [
        (("first", ctypes.c_int64), ("full", ctypes.c_int64), ("base", ctypes.c_void_p)),
        (
            ("first", ctypes.c_int64),
            ("tail_bytes", ctypes.c_int64),
            ("full", ctypes.c_int64),
            ("base", ctypes.c_void_p),
        ),
    ],
    ids=["one fewer", "another order"],
)
def test_a_library_of_another_version_is_refused(
    fields: tuple[tuple[str, type], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(ctypes.Structure):
        _fields_ = fields

    monkeypatch.setitem(machine_code.SHARED, "p4r_piece", Other)
    with pytest.raises(NativeUnavailableError, match=r"different versions: p4r_piece"):
        machine_code.check_layouts(runtime())
