# SPDX-License-Identifier: Apache-2.0
"""What loads, what is refused and how, and that damaged JSON gives a LoadError."""

from __future__ import annotations

import json
import random
import shutil
import time
from typing import Any

import pytest
from compile_programs import COMPILER, compiled
from p4reduce_switch.codegen_c.generate import generate
from p4reduce_switch.loader.load_program import load
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.program.load_error import LoadError
from pipeline_programs import AGGREGATION, NAMES, REFUSED, config

# Program -> what the message must say. Where p4c gives no source line it names the parser's state,
# or the line of what uses the construct.
MESSAGES = {
    "extract_at": (
        "parser state start: extract into an element of a header stack at a run-time index"
    ),
    "field_list": "field_list.p4:20: field list 'field_list2' with a field that is not metadata",
    "hash_algorithm": "hash_algorithm.p4:15: hash algorithm 'random'",
    "hash_input": "hash_input.p4:20: input of 'calc' that is neither a field nor a constant",
    "varbit_digest": "varbit_digest.p4:18: digest 'seen_t' of a varbit field",
}


def test_every_refused_program_has_its_message() -> None:
    assert set(REFUSED) == set(MESSAGES)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_and_line(name: str) -> None:
    with pytest.raises(LoadError) as caught:
        Pipeline(config(f"refused/{name}"))
    assert str(caught.value) == f"{MESSAGES[name]} is not supported"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        ('{"a": ', "not JSON"),
        ("[]", "not an object"),
        ("{}", "not the BMv2 JSON format"),
        ('{"__meta__": {"version": [3, 1]}}', "version 3.1; version 2 is needed"),
    ],
)
def test_not_bmv2_json(text: bytes | str, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        Pipeline(text)


def edited(name: str, edit: Any) -> str:
    root = json.loads(config(name))
    edit(root)
    return json.dumps(root)


def test_unknown_primitive_and_operator() -> None:
    def primitive(root: Any) -> None:
        root["actions"][-1]["primitives"][0]["op"] = "teleport"

    def operator(root: Any) -> None:
        root["pipelines"][0]["conditionals"][0]["expression"]["value"]["op"] = "<=>"

    with pytest.raises(LoadError, match=r"tables\.p4:\d+: primitive 'teleport' is not supported"):
        load(edited("tables", primitive))
    with pytest.raises(LoadError, match=r"tables\.p4:\d+: operator '<=>' is not supported"):
        load(edited("tables", operator))


@pytest.mark.parametrize(("op", "control"), [("recirculate", "ingress"), ("resubmit", "egress")])
def test_resubmit_and_recirculate_in_the_wrong_control(op: str, control: str) -> None:
    def edit(root: Any) -> None:
        for action in root["actions"]:
            for primitive in action["primitives"]:
                if primitive["op"] in ("resubmit", "recirculate"):
                    primitive["op"] = op

    wanted = rf"replay\.p4:\d+: primitive '{op}' in {control} is not supported"
    with pytest.raises(LoadError, match=wanted):
        load(edited("replay", edit))


def first(items: Any, name: str) -> Any:
    return next(item for item in items if item.get("name") == name)


def test_damage_is_named_by_the_innermost_source_line() -> None:
    def in_primitive(root: Any) -> None:
        action = first(root["actions"], "I.set")
        action["primitives"][0]["parameters"][0] = {"type": "field"}

    def in_condition(root: Any) -> None:
        root["pipelines"][0]["conditionals"][0]["expression"]["value"] = {"op": []}

    def in_table(root: Any) -> None:
        del first(root["pipelines"][0]["tables"], "I.constants")["key"][0]["target"]

    for edit, error in ((in_primitive, "KeyError"), (in_condition, "TypeError"), (in_table, "Key")):
        wanted = rf"tables\.p4:\d+: not the BMv2 JSON format: {error}"
        with pytest.raises(LoadError, match=wanted):
            load(edited("tables", edit))


def test_loop_in_a_control() -> None:
    def edit(root: Any) -> None:
        tables = root["pipelines"][0]["tables"]
        tables[0]["next_tables"] = {"__HIT__": tables[0]["name"], "__MISS__": None}

    with pytest.raises(LoadError, match="pipeline 'ingress' has a loop"):
        load(edited("tables", edit))


def test_const_entry_that_does_not_fit() -> None:
    def edit(root: Any) -> None:
        table = next(t for t in root["pipelines"][0]["tables"] if t["name"] == "I.constants")
        table["entries"][0]["match_key"][0]["key"] = "0x12345"

    with pytest.raises(LoadError, match=r"tables\.p4:\d+: .*16 bits"):
        Pipeline(edited("tables", edit))


@pytest.mark.parametrize("given", ["default_entry", "entries"])
def test_wrong_number_of_arguments(given: str) -> None:
    """What an action is given by the program itself has to be as much as it takes."""

    def edit(root: Any) -> None:
        tables = [table for pipeline in root["pipelines"] for table in pipeline["tables"]]
        entry = next(table[given] for table in tables if table.get(given))
        entry = entry[0]["action_entry"] if given == "entries" else entry
        entry["action_data"] = [*entry["action_data"], "0x1"]

    with pytest.raises(LoadError, match=r"tables\.p4:\d+: .* gives \d arguments to .* takes \d$"):
        Pipeline(edited("tables", edit))


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            found.append((value, key))
            found += places(value[key])
    return found


HOSTILE = (
    None,
    -1,
    0,
    99,
    2**31,
    2**32,
    2**63,
    2**70,
    10**40,
    0.5,
    -0.0,
    1e308,
    True,
    False,
    "",
    "x",
    "0x1",
    "0x",
    "-0x1",
    "0x" + "f" * 30000,
    "'\n",
    '"+q()+"',
    "\\",
    "a" * 300,
    "\0",
    "²",
    "$valid$",
    "standard_metadata",
    "q[__import__('os')]",
    "\ud800",
    "*",
    [],
    {},
    [1, 2],
    [[]],
    [None],
    ["x", "y"],
    {"type": "expression"},
    [0.5, 2**70],
)


def deep(generator: random.Random) -> Any:
    """A value within many others, as lists or as what wraps an expression."""
    value: Any = {"type": "field", "value": ["standard_metadata", "egress_spec"]}
    wrapper = generator.choice(("list", "wrap", "sum", "shift", "and"))
    for _ in range(generator.choice((3, 30, 150, 250))):
        if wrapper == "list":
            value = [value]
        elif wrapper == "wrap":
            value = {"type": "expression", "value": value}
        else:
            op = {"sum": "+", "shift": "<<", "and": "and"}[wrapper]
            value = {"type": "expression", "value": {"op": op, "left": value, "right": value}}
            value["value"]["left"] = {"type": "hexstr", "value": "0x3"}
    return value


def damage(generator: random.Random, root: Any) -> None:
    """Take a value out, or put another in its place: a hostile one, or one from elsewhere."""
    found = places(root)
    container, key = generator.choice(found)
    chance = generator.random()
    if chance < 0.2:
        del container[key]
    elif chance < 0.35:
        other, where = generator.choice(found)
        container[key] = json.loads(json.dumps(other[where]))
    elif chance < 0.45:
        container[key] = deep(generator)
    else:
        container[key] = generator.choice(HOSTILE)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", NAMES)
def test_damaged_json_loads_or_gives_a_load_error(fuzz: Any, name: str) -> None:
    text = config(name)
    for _ in fuzz.rounds(40):
        root = json.loads(text)
        try:
            for _ in range(fuzz.random.choice((1, 1, 1, 2, 3))):
                damage(fuzz.random, root)
            changed = json.dumps(root)
        except RecursionError:  # ours: deep values within each other cannot even be written
            continue
        began = time.process_time()
        text_of_error = ""
        try:
            Pipeline(changed).process(0, bytes(80))
        except LoadError as error:
            text_of_error = str(error)
        assert len(text_of_error.encode()) < 4000
        assert time.process_time() - began < 5, "it takes too long"


@pytest.mark.fuzz
def test_noise_is_no_program(fuzz: Any) -> None:
    pieces = (
        *'[]{}":,\\',
        "0",
        "-",
        "1e9",
        "NaN",
        "null",
        '{"a":',
        "\ud800",
        "1" * 5000,
        "[" * 3000,
    )
    for _ in fuzz.rounds(100):
        text = "".join(fuzz.random.choices(pieces, k=fuzz.random.choice((1, 5, 50))))
        with pytest.raises(LoadError):
            Pipeline(text)
        with pytest.raises(LoadError):
            Pipeline(fuzz.random.randbytes(fuzz.random.choice((0, 1, 20, 500))))


@pytest.mark.parametrize("name", NAMES)
def test_generated_source_is_reproducible(name: str) -> None:
    sources = set()
    for _ in range(2):
        generate.cache_clear()
        load.cache_clear()
        sources.add(generate(load(config(name))).source)
    assert len(sources) == 1


def test_names_of_the_aggregation_program() -> None:
    pipeline = Pipeline(AGGREGATION.read_bytes(), cpu_port=255)
    assert pipeline.cpu_port == 255
    assert {"own_address", "admission", "bridge", "delivery"} <= set(pipeline.tables)
    assert pipeline.counters["outcomes"].size == 64
    assert pipeline.counters["contributed"].is_direct
    with pytest.raises(IndexError, match="direct"):
        pipeline.counters["contributed"].read(0)


@pytest.mark.long
@pytest.mark.p4c
@pytest.mark.parametrize("name", [*NAMES, *(f"refused/{name}" for name in REFUSED)])
def test_json_is_what_p4c_makes_of_the_source(name: str) -> None:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is not on PATH")
    program, _ = compiled(name)
    assert program == config(name).decode()
