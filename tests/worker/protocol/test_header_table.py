# SPDX-License-Identifier: Apache-2.0
"""All that is made of the header's table is committed as the table gives it."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
from p4reduce.wire import header

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("make_header")


def test_committed_files_are_what_the_table_gives(tool: ModuleType) -> None:
    stale = [str(path) for path, text in tool.outputs().items() if path.read_text() != text]
    assert not stale, "run `make header`, and `make p4` if the P4 header is among them"


def test_a_field_reaches_every_file(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    more = header.HeaderField("colour", 16, "worker", "of nothing", "Colour")
    fields = (*header.HEADER_FIELDS, more, more._replace(name="shade"))
    monkeypatch.setattr(tool, "HEADER_FIELDS", fields)
    monkeypatch.setattr(tool.make_dissector.wire, "HEADER_FIELDS", fields)
    for path, text in tool.outputs().items():
        assert "colour" in text, path
    drawing = tool.page(tool.PAGE.read_text())
    assert f"|{'colour'.center(31)}|{'shade'.center(31)}|" in drawing
    assert "p4r_get_shade(const uint8_t *frame)" in tool.c_source()
    assert "frame[80]" in tool.c_source(), "behind the header's 36 bytes, from 42 on, and `colour`"


def test_everything_has_a_meaning() -> None:
    assert set(header.FLAGS) == set(header.Flag.__members__)
    assert set(header.KINDS) == set(header.FrameKind)
    assert set(header.FORMATS) == set(header.Format)
    assert sum(field.bits for field in header.HEADER_FIELDS) % 32 == 0
