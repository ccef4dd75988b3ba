# SPDX-License-Identifier: Apache-2.0
"""Programs made to harm: none of their strings is run, and none of their numbers eats the switch.

What is generated from a program is executed. A string of it may get there as a part of an
identifier or within a literal, and in no other way.
"""

from __future__ import annotations

import ast
import io
import json
import tokenize
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from p4reduce_switch.pipeline import LoadError, Pipeline
from pipeline_programs import AGGREGATION, NAMES, PROGRAMS, config

MARK = "INJECTED"
PAYLOADS = (
    f"q[{MARK}()]",  # as an expression, and as something to assign to
    f"'+{MARK}()+'",
    f'"+{MARK}()+"',
    f"\n{MARK}()\n#",
    f"\\'\r{MARK}()",
    f"{{{MARK}()}}",
    f"0 or {MARK}()",
)
# More that Python reads in a way of its own, without a mark.
NAMES_ONLY = ("", "_", "²", "ﬁ", "\ud800", "\0", "None", "1", "é", "a\u0301")
PROGRAM_NAMES = (*NAMES, "p4rt_features", "p4rt_match_kinds", "p4reduce")
MESSAGES = {"_log", "_assertion"}  # their arguments are literals, and hold what the program says


def text_of(name: str) -> bytes:
    return AGGREGATION.read_bytes() if name == "p4reduce" else config(name)


def scalars(value: Any, shape: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Each string, number and flag: how to get there (lists as *), its container and its key."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        here = (*shape, key if isinstance(value, dict) else "*")
        if key == "source_info":
            here = (key,)  # these are alike, whatever they are of
        if isinstance(item, (dict, list)):
            yield from scalars(item, here)
        else:
            yield here, value, key


def is_clean(source: str) -> None:
    """Assert that the mark is nowhere but within identifiers and messages."""
    tree = ast.parse(source)
    told = {
        id(part)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        if call.func.id in MESSAGES
        for argument in call.args
        for part in ast.walk(argument)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            assert node.id != MARK
            assert node.id.isascii()
        elif isinstance(node, ast.Attribute):
            assert MARK not in node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert MARK not in node.value or id(node) in told
        elif isinstance(node, ast.Import | ast.ImportFrom):
            assert ast.unparse(node) == "from struct import Struct"
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        assert token.type != tokenize.COMMENT or MARK not in token.string


def loads(root: Any) -> bool:
    """Assert that a program loads to something clean, or is refused in the proper way."""
    try:
        pipeline = Pipeline(json.dumps(root))
    except LoadError:
        return False
    if MARK in pipeline.source:
        is_clean(pipeline.source)
    assert pipeline.source.isascii()
    return True


@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_a_string_in_every_place(name: str) -> None:
    """Strings for strings, numbers and flags: all of one kind at once."""
    text = text_of(name)
    shapes = dict.fromkeys(shape for shape, _, _ in scalars(json.loads(text)))
    loaded = 0
    for number, wanted in enumerate(shapes):
        root = json.loads(text)
        for shape, container, key in scalars(root):
            if shape == wanted:
                container[key] = PAYLOADS[number % len(PAYLOADS)]
        loaded += loads(root)
    assert loaded > 0, "nothing of this got as far as the generator"


NAMED = """header_types header_stacks header_unions headers learn_lists parse_vsets calculations
counter_arrays meter_arrays register_arrays actions runtime_data parse_states tables
action_profiles conditionals action_calls"""
OURS = {"standard_metadata", "ingress", "egress"}
WORDS = {"type", "op", "algo", "match_type"}  # whose values are the format's words


def names_of(root: Any) -> set[str]:
    """What the program calls its things; not what v1model and the format call theirs."""
    found, words = {f[0] for t in root["header_types"] for f in t["fields"]}, set()
    for shape, container, key in scalars(root):
        if key == "name" and len(shape) > 2 and shape[-3] in NAMED.split():
            found.add(container[key])
        if key in WORDS:
            words.add(container[key])
        if "next_tables" not in shape:
            words.update(shape)
    [own] = (t for t in root["header_types"] if t["name"] == "standard_metadata")
    return found - words - OURS - {f[0] for f in own["fields"]}


def renamed(value: Any, names: set[str], rename: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {
            rename(key) if key in names else key: renamed(item, names, rename)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [renamed(item, names, rename) for item in value]
    return rename(value) if isinstance(value, str) and value in names else value


@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_every_name_at_once(name: str) -> None:
    """The program is still the same one, so all of its names get to where names get."""
    root = json.loads(text_of(name))
    names = names_of(root)
    for payload in (*PAYLOADS, *NAMES_ONLY):
        assert loads(renamed(root, names, lambda name, p=payload: p + name + p))


def test_names_that_would_shadow() -> None:
    """A field that gets the name of something that the generated code uses itself."""
    root = json.loads(config("tables"))
    for header, field in (("from", "bytes"), ("", "frame"), ("_", "size"), ("", "_debug__")):
        type_ = {"name": "own_t", "id": 99, "fields": [[field, 8], ["other", 8]]}
        mine = {"name": header, "id": 99, "header_type": "own_t", "metadata": False, "pi_omit": 1}
        changed = json.loads(json.dumps(root))
        changed["header_types"].append(type_)
        changed["headers"].append(mine)
        changed["deparsers"][0]["order"].append(header)
        changed["actions"][0]["primitives"] += [
            {"op": "add_header", "parameters": [{"type": "header", "value": header}]},
            {
                "op": "assign",
                "parameters": [
                    {"type": "field", "value": [header, field]},
                    {"type": "hexstr", "value": "0x1"},
                ],
            },
        ]
        pipeline = Pipeline(json.dumps(changed))
        is_clean(pipeline.source)
        for size in (0, 14, 60):
            pipeline.process(1, bytes(size))


def test_programs_are_all_here() -> None:
    there = {path.stem for path in PROGRAMS.glob("*.json")}
    assert set(PROGRAM_NAMES) >= there, "add it to PROGRAM_NAMES"
