# SPDX-License-Identifier: Apache-2.0
"""The list of constructs says what runs, and names a program for it: here that is held true."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from p4reduce_switch.codegen_c.generate import generate
from p4reduce_switch.constructs import constructs
from p4reduce_switch.loader.load_program import load
from p4reduce_switch.program import ir
from p4reduce_switch.program.hashes import ALGORITHMS
from p4reduce_switch.program.load_error import LoadError
from pipeline_programs import NAMES, REFUSED, config

PARAMETERS_NEVER_WRITTEN = {"swap_headers", "invalidate"}  # what the loader makes itself


ROWS = constructs()
PROGRAM_NAMES = (*NAMES, *(f"refused/{name}" for name in REFUSED))


def dicts(value: Any) -> Iterator[dict[str, Any]]:
    """All objects within a value."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from dicts(part)


def primitives(root: Any) -> Iterator[Any]:
    for action in root["actions"]:
        yield from action["primitives"]
    for op in parser_ops(root):
        if op["op"] == "primitive":
            yield op["parameters"][0]


def states(root: Any) -> Iterator[Any]:
    for parser in root["parsers"]:
        yield from parser["parse_states"]


def parser_ops(root: Any) -> Iterator[Any]:
    for state in states(root):
        yield from state["parser_ops"]


def arguments(root: Any) -> Iterator[dict[str, Any]]:
    """Whatever has a value: arguments of primitives and parser operations, conditions."""
    for item in primitives(root):
        yield from dicts(item["parameters"])
    for op in parser_ops(root):
        if op["op"] not in ("extract", "extract_VL", "primitive"):
            yield from dicts(op["parameters"])
    for pipeline in root["pipelines"]:
        for conditional in pipeline["conditionals"]:
            yield from dicts(conditional["expression"])


def of_primitives(root: Any) -> Iterator[str]:
    yield from (item["op"] for item in primitives(root))


def of_operators(root: Any) -> Iterator[str]:
    yield from (item["op"] for item in arguments(root) if "op" in item and "right" in item)


def of_values(root: Any) -> Iterator[str]:
    yield from (item["type"] for item in arguments(root) if isinstance(item.get("type"), str))


def of_parser(root: Any) -> Iterator[str]:
    for op in parser_ops(root):
        yield op["op"]
        if op["op"] == "extract":
            yield f"extract {op['parameters'][0]['type']}"
    for state in states(root):
        yield from (f"select {item['type']}" for item in state["transitions"])
        yield from (
            f"key {item['type']}"
            for item in state["transition_key"]
            if item["type"] != "expression"
        )


def of_tables(root: Any) -> Iterator[str]:
    for pipeline in root["pipelines"]:
        if pipeline.get("action_calls"):
            yield "action_calls"
        for table in pipeline["tables"]:
            yield f"table {table['type']}"
            yield from (f"match {key['match_type']}" for key in table["key"])
            yield from (key for key in ("entries", "support_timeout") if table.get(key))


def of_hashes(root: Any) -> Iterator[str]:
    for item in root["calculations"]:
        yield f"hash {item['algo']}"
        yield from (f"input {part['type']}" for part in item["input"])
    yield from (f"checksum {item['type']}" for item in root["checksums"])


def of_state(root: Any) -> Iterator[str]:
    kept = {name for row in ROWS if row.section == _STATE for name in row.names}
    yield from (key for key in root if key in kept and root[key] and key not in _NO_EFFECT)


_STATE = "What a program keeps and tells"
_NO_EFFECT = ("force_arith", "enums")
FINDERS: dict[str, Callable[[Any], Iterator[str]]] = {
    "Primitives": of_primitives,
    "Operators": of_operators,
    "Values": of_values,
    "Parser": of_parser,
    "Tables": of_tables,
    "Hashes and checksums": of_hashes,
    _STATE: of_state,
}


def constructs_of(program: str) -> dict[str, set[str]]:
    root = json.loads(config(program))
    return {section: set(find(root)) for section, find in FINDERS.items()}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, set[str]]]:
    return {name: constructs_of(name) for name in PROGRAM_NAMES}


def test_every_section_is_known() -> None:
    assert {row.section for row in ROWS} == set(FINDERS)
    names = [(row.section, name) for row in ROWS for name in row.names]
    assert len(names) == len(set(names))


def test_every_construct_is_in_the_program_that_is_named(
    found: dict[str, dict[str, set[str]]],
) -> None:
    for row in ROWS:
        if row.program == "-":
            continue
        for name in row.names:
            assert name in found[row.program][row.section], (row.section, name, row.program)


def test_every_construct_of_a_program_has_a_row(found: dict[str, dict[str, set[str]]]) -> None:
    """And a dash means that none of the programs has it."""
    said = {(row.section, name): row for row in ROWS for name in row.names}
    for program, sections in found.items():
        for section, names in sections.items():
            for name in names:
                row = said.get((section, name))
                assert row is not None, (program, section, name)
                assert row.program != "-", (program, section, name)
                assert row.runs or program.startswith("refused/"), (program, section, name)


@pytest.mark.parametrize("program", sorted({row.program for row in ROWS} - {"-"}))
def test_programs_load_on_both_engines_or_are_refused(program: str) -> None:
    """The C is only written; what it does: tests/native/test_c_programs.py."""
    runs = {row.runs for row in ROWS if row.program == program}
    assert len(runs) == 1
    if runs == {True}:
        assert generate(load(config(program))).source
    else:
        with pytest.raises(LoadError, match="is not supported"):
            load(config(program))


def test_what_the_loader_knows_is_in_the_tables() -> None:
    runs: dict[str, set[str]] = {section: set() for section in FINDERS}
    for row in ROWS:
        if row.runs:
            runs[row.section].update(row.names)
    assert set(ir.PRIMITIVES) - PARAMETERS_NEVER_WRITTEN <= runs["Primitives"]
    assert {*ir.UNARY_OPERATORS, *ir.BINARY_OPERATORS} <= runs["Operators"]
    assert {f"hash {name}" for name in ALGORITHMS} <= runs["Hashes and checksums"]


# All of these are compared with BMv2's answers.
LARGE = ("constructs", "union_stacks", "varbit_fields")


def test_the_large_programs_have_all_that_bmv2_runs(found: dict[str, dict[str, set[str]]]) -> None:
    missing = {
        (row.section, name)
        for row in ROWS
        for name in row.names
        if row.runs
        and row.program != "-"
        and not any(name in found[large][row.section] for large in LARGE)
    }
    assert not missing
