# SPDX-License-Identifier: Apache-2.0
"""The committed compiled program is the one that the sources give."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from tool_scripts import tool_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compile_p4() -> ModuleType:
    return tool_script("compile_p4")


def test_compiled_program_is_not_older_than_its_sources(compile_p4: ModuleType) -> None:
    recorded = (compile_p4.COMPILED_DIR / "sources.sha256").read_text().strip()
    assert recorded == compile_p4.fingerprint(), "p4src/ has changed: run `make p4`"


def test_a_changed_source_changes_the_fingerprint(
    compile_p4: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(compile_p4.SOURCE_DIR, tmp_path / "p4src")
    monkeypatch.setattr(compile_p4, "SOURCE_DIR", tmp_path / "p4src")
    before = compile_p4.fingerprint()
    lanes = tmp_path / "p4src" / "v1model" / "lanes.p4"
    lanes.write_text(lanes.read_text() + "\n")
    assert compile_p4.fingerprint() != before


def test_compiled_program_names_no_folder_of_a_machine(compile_p4: ModuleType) -> None:
    program = json.loads((compile_p4.COMPILED_DIR / "p4reduce.json").read_text())

    def file_names(node: object) -> set[str]:
        if isinstance(node, dict):
            own = {node["filename"]} if isinstance(node.get("filename"), str) else set()
            return own.union(*(file_names(value) for value in node.values()))
        if isinstance(node, list):
            return set().union(*(file_names(value) for value in node))
        return set()

    absolute = {name for name in file_names(program) if Path(name).is_absolute()}
    assert not absolute


@pytest.mark.long
@pytest.mark.p4c
@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH")
def test_p4c_compiles_the_sources_to_the_committed_program(
    compile_p4: ModuleType, tmp_path: Path
) -> None:
    compile_p4.compile_program(tmp_path)
    versions = [
        (folder / "p4c.version").read_text().strip()
        for folder in (tmp_path, compile_p4.COMPILED_DIR)
    ]
    if versions[0] != versions[1]:
        pytest.skip(f"p4c here is {versions[0]}, compiled/ was made by {versions[1]}")
    for name in (f"{one}.{end}" for one in compile_p4.PROGRAMS for end in ("json", "p4info.txtpb")):
        fresh = (tmp_path / name).read_text()
        committed = (compile_p4.COMPILED_DIR / name).read_text()
        if name.endswith(".json"):
            fresh_program, committed_program = json.loads(fresh), json.loads(committed)
            # What compiled it is not part of the program.
            for program in (fresh_program, committed_program):
                program.pop("__meta__", None)
            assert fresh_program == committed_program
        else:
            assert fresh == committed
