# SPDX-License-Identifier: Apache-2.0
"""p4c's open back end for Tofino compiles the program, and its assembler takes what comes out."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4reduce_controller.fabric.schema import Schema
from tool_scripts import tool_script

ROOT = Path(__file__).resolve().parents[2]
COMPILED_64 = ROOT / "p4src" / "compiled" / "p4reduce64.p4info.txtpb"

tofino = tool_script("tofino")
pytestmark = [
    pytest.mark.tofino,
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(tofino.missing()), reason=f"not on PATH: {tofino.missing()}"),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tofino.compile_program(tmp_path_factory.mktemp("tofino") / "made")


def test_it_fits_into_tofino_2(compiled: Any) -> None:
    for resource, (used, of) in compiled.rows.items():
        assert used > 0, resource
        assert not of or used <= of, resource
    # 64 lanes in pairs, and eight registers of a slot's state beside them.
    assert compiled.rows["stateful ALUs for registers"][0] == 32 + 8
    assert compiled.binary > 1 << 20


def test_the_page_has_its_figures(compiled: Any) -> None:
    assert compiled.table() in (ROOT / "docs" / "tofino.md").read_text(), "make tofino"


def test_p4runtime_sees_the_tables_of_v1model(compiled: Any) -> None:
    own, other = _p4info(compiled.p4info), _p4info(COMPILED_64.read_text())
    assert Schema(own).tables == Schema(other).tables
    for table in Schema(own).tables:
        fields, others = (
            [(field.id, field.name, field.bitwidth) for field in schema.table(table).match_fields]
            for schema in (Schema(own), Schema(other))
        )
        assert fields == others, table
    assert own.controller_packet_metadata == other.controller_packet_metadata
    parameters = {action.preamble.alias: action.params for action in other.actions}
    for name in ("grant", "grant_partial", "pass_down", "is_own", "is_forged", "forward", "whole"):
        (found,) = (action for action in own.actions if action.preamble.alias == name)
        assert list(found.params) == list(parameters[name]), name


def _p4info(text: str) -> p4info_pb2.P4Info:
    """A P4Info without the externs that only TNA has, whose types are Barefoot's."""
    kept = re.sub(r"^externs \{.*?^\}\n", "", text, flags=re.MULTILINE | re.DOTALL)
    return text_format.Parse(kept, p4info_pb2.P4Info())


def test_what_the_compiler_refuses_is_said(tmp_path: Path) -> None:
    sources = tmp_path / "p4src"
    shutil.copytree(ROOT / "p4src", sources)
    bridge = sources / "common" / "bridge.p4"
    text = bridge.read_text()
    applied = "stations.apply();"
    assert text.count(applied) == 1
    bridge.write_text(text.replace(applied, "stations_.apply();"))
    with pytest.raises(tofino.TofinoError, match=r"(?s)p4c-barefoot ended with .*stations_"):
        tofino.compile_program(tmp_path / "made", sources)
