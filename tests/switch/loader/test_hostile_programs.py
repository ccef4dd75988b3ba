# SPDX-License-Identifier: Apache-2.0
"""Programs made to harm: no string and no number of them does more than stop the program.

What C becomes of their strings: tests/native/test_c_hostile.py.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.program.load_error import LoadError
from p4rt_client import Client
from p4rt_client import config as p4rt_config
from pipeline_programs import AGGREGATION, NAMES, PROGRAMS, config

pytest_plugins = ("p4rt_fixtures",)

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
LEFT_OUT = "constructs"  # takes long, and has no place that the small ones have not
NAMES_ONLY = ("", "_", "²", "ﬁ", "\ud800", "\0", "None", "1", "é", "a\u0301")
PROGRAM_NAMES = (
    *(name for name in NAMES if name != LEFT_OUT),
    "p4rt_features",
    "p4rt_match_kinds",
    "p4reduce",
)
LARGE = ("p4reduce", "union_stacks", "varbit_fields")


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


def loads(root: Any) -> bool:
    """Assert that a program loads and runs frames, or is refused in the proper way."""
    try:
        pipeline = Pipeline(json.dumps(root))
    except LoadError:
        return False
    for size in (0, 14, 60):
        pipeline.process(1, bytes(size))
    return True


Places = dict[tuple[str, ...], list[tuple[Any, Any]]]  # containers and keys, by shape


def places_of(root: Any) -> Places:
    places: Places = {}
    for shape, container, key in scalars(root):
        places.setdefault(shape, []).append((container, key))
    return places


def is_shallow(shape: tuple[str, ...]) -> bool:
    """Not far within an expression, where it is the same again and again."""
    return shape.count("left") + shape.count("right") <= 3


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_a_string_in_every_place(name: str) -> None:
    """Strings for strings, numbers and flags: all of one kind at once."""
    root = json.loads(text_of(name))
    places = places_of(root)
    if name in LARGE:  # they take as long as all others, which have most of these places too
        places = {shape: spots for shape, spots in places.items() if is_shallow(shape)}
        for other in PROGRAM_NAMES:
            for shape in places_of(json.loads(text_of(other))) if other != name else ():
                places.pop(shape, None)
    loaded = 0
    for number, spots in enumerate(places.values()):
        before = [container[key] for container, key in spots]
        for container, key in spots:
            container[key] = PAYLOADS[number % len(PAYLOADS)]
        loaded += loads(root)
        for (container, key), value in zip(spots, before, strict=True):
            container[key] = value
    assert loaded > 0 or name in LARGE, "nothing of this got as far as the generator"


NAMED = """header_types header_stacks header_unions headers learn_lists parse_vsets calculations
counter_arrays meter_arrays register_arrays actions runtime_data parse_states tables
action_profiles conditionals action_calls"""
OURS = {"standard_metadata", "ingress", "egress"}
LISTS = re.compile(r"tuple_\d+")  # p4c's names of lists' types; digests of one type differ by place
WORDS = {"type", "op", "algo", "match_type"}  # whose values are the format's words


def names_of(root: Any) -> set[str]:
    """What the program calls its things; not what v1model and the format call theirs."""
    found, words = {f[0] for t in root["header_types"] for f in t["fields"]}, set()
    union_stacks = {stack["name"] for stack in root["header_union_stacks"]}
    for shape, container, key in scalars(root):
        if key == "name" and len(shape) > 2 and shape[-3] in NAMED.split():
            found.add(container[key])
        if key in WORDS:
            words.add(container[key])
        if "next_tables" not in shape:
            words.update(shape)
        if key == 1 and str(container[0]) in union_stacks:
            # A field of the last union: p4c writes the name of its header before it.
            words.update(container[1].split("."))
    [own] = (t for t in root["header_types"] if t["name"] == "standard_metadata")
    lists = {name for name in found if LISTS.fullmatch(name)}
    return found - words - OURS - lists - {f[0] for f in own["fields"]}


def renamed(value: Any, names: set[str], rename: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {
            rename(key) if key in names else key: renamed(item, names, rename)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [renamed(item, names, rename) for item in value]
    return rename(value) if isinstance(value, str) and value in names else value


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_every_name_at_once(name: str) -> None:
    """The program is still the same one, so all of its names get to where names get."""
    root = json.loads(text_of(name))
    names = names_of(root)
    for payload in (*PAYLOADS, *NAMES_ONLY):
        assert loads(renamed(root, names, lambda name, p=payload: p + name + p))


def test_programs_are_all_here() -> None:
    there = {path.stem for path in PROGRAMS.glob("*.json")}
    assert {*PROGRAM_NAMES, LEFT_OUT} >= there, "add it to PROGRAM_NAMES"


# -- Numbers, and what is within each other --------------------------------------------------------

HUGE = 2**70
FIELD = {"type": "field", "value": ["standard_metadata", "egress_spec"]}


def nested(depth: int, op: str, left: str = "0x1") -> Any:
    """`left op (left op (…))`."""
    item: Any = FIELD
    for _ in range(depth):
        parts = {"op": op, "left": {"type": "hexstr", "value": left}, "right": item}
        item = {"type": "expression", "value": parts}
    return item


def wrapped(depth: int) -> Any:
    item: Any = FIELD
    for _ in range(depth):
        item = {"type": "expression", "value": item}
    return item


def assign(value: Any) -> dict[str, Any]:
    return {"op": "assign", "parameters": [FIELD, value]}


def conditionals(depth: int) -> list[Any]:
    """So many within each other, which all end at the end."""
    condition = {"type": "expression", "value": {"op": "d2b", "left": None, "right": FIELD}}
    end = {"type": "hexstr", "value": hex(depth)}
    return [{"op": "_jump_if_zero", "parameters": [condition, end]}] * depth


def array(key: str, **values: Any) -> Callable[[Any], None]:
    item = {"name": "big", "is_direct": False, "rate_count": 2, "type": "bytes"}
    return lambda root: root.setdefault(key, []).append(item | values)


def header(width: int, count: int = 1) -> Callable[[Any], None]:
    def edit(root: Any) -> None:
        fields = [[f"f{number}", width] for number in range(count)]
        root["header_types"].append({"name": "big_t", "id": 99, "fields": fields})
        big = {"name": "big", "id": 99, "header_type": "big_t", "metadata": True}
        root["headers"].append(big)

    return edit


def action(*primitives: Any) -> Callable[[Any], None]:
    return lambda root: root["actions"][0].update(primitives=list(primitives))


def constant_width(root: Any) -> None:
    part = {"type": "hexstr", "value": "0x1", "bitwidth": HUGE}
    root["calculations"] = [{"name": "c", "algo": "crc16", "input": [part]}]


def parameter(root: Any) -> None:
    root["actions"][0]["runtime_data"] = [{"name": "big", "bitwidth": HUGE}]


def table(root: Any) -> None:
    root["pipelines"][0]["tables"][0]["max_size"] = HUGE


def shift(root: Any) -> None:
    state = root["parsers"][0]["parse_states"][0]
    state["parser_ops"].append({"op": "shift", "parameters": [HUGE]})


def lookahead(offset: Any, width: Any) -> Callable[[Any], None]:
    def edit(root: Any) -> None:
        value = {"type": "lookahead", "value": [offset, width]}
        state = root["parsers"][0]["parse_states"][0]
        state["parser_ops"].append({"op": "set", "parameters": [FIELD, value]})

    return edit


def stack(root: Any) -> None:
    number = root["headers"][-1]["id"]
    root["header_stacks"] = [{"name": "big", "header_ids": [number] * 257}]


def cast(width: str) -> Any:
    item = {"op": "two_comp_mod", "left": FIELD, "right": {"type": "hexstr", "value": width}}
    return action(assign({"type": "expression", "value": item}))


TOO_MUCH: dict[str, tuple[Callable[[Any], None], str]] = {
    "field": (header(HUGE), f"the width of field big.f0 is {HUGE}; more than 65536 is not"),
    "header": (header(1 << 16, 9), "header 'big' has 589824 bits; more than 524288 are not"),
    "parameter": (parameter, f"the width of parameter big is {HUGE}; more than 65536"),
    "constant": (constant_width, f"the width of a constant in a calculation is {HUGE}; more"),
    "digits": (
        action(assign({"type": "hexstr", "value": "0x1" + "0" * 20000})),
        "a constant has 80001 bits; more than 65536 are not",
    ),
    "cast": (cast(hex(HUGE)), f"the width of operator 'two_comp_mod' is {HUGE}; more than"),
    "cast to none": (cast("0x0"), "the width of operator 'two_comp_mod' is 0, not"),
    "shift": (shift, f"a shift is {HUGE}; more than 65536"),
    "lookahead": (lookahead(0, HUGE), f"the width of a lookahead is {HUGE}; more than 65536"),
    "lookahead far": (lookahead(HUGE, 8), f"the offset of a lookahead is {HUGE}; more than 65536"),
    "table": (table, f"is {HUGE}; more than 16777216 is not"),
    "value set": (
        array("parse_vsets", max_size=HUGE),
        f"the size of parser value set big is {HUGE}; more than 16777216",
    ),
    "register": (
        array("register_arrays", size=2**31, bitwidth=8),
        f"the size of register big is {2**31}; counters, meters and registers of more than 256 MiB",
    ),
    "wide registers": (
        array("register_arrays", size=2**15, bitwidth=2**16),
        "the size of register big is 32768; counters, meters and",
    ),
    "register's width": (
        array("register_arrays", size=1, bitwidth=HUGE),
        f"the width of register big is {HUGE}; more than 65536",
    ),
    "counter": (
        array("counter_arrays", size=2**31),
        f"the size of counter big is {2**31}; counter",
    ),
    "meter": (array("meter_arrays", size=2**31), f"the size of meter big is {2**31}; counters, "),
    "negative": (array("counter_arrays", size=-1), "the size of counter big is -1, not an integer"),
    "float": (array("counter_arrays", size=0.5), "the size of counter big is 0.5, not an integer"),
    "stack": (stack, "the size of stack big is 257; more than 256"),
    "sums": (action(assign(nested(300, "+"))), "more than 200 nested operations"),
    "wrappers": (action(assign(wrapped(300))), "more than 200 nested operations"),
    "values": (
        action(assign(nested(9, "*", "0x" + "f" * 16000))),
        "a value of more than 262144 bits",
    ),
    "letters": (action({"op": "\ud800", "parameters": []}), "primitive '\\ud800' is not supported"),
    "conditionals": (action(*conditionals(300)), "more than 200 nested conditionals"),
}

DEEP = {
    "lists": "[" * 100_000,
    "objects": '{"a":' * 100_000,
    "in a program": '{"actions": ' + "[" * 5000 + "]" * 5000 + "}",
    "digits": "1" * 100_000,
    "not a number": '{"a": NaN}',
    "endless": '{"a": [1e999, -Infinity]}',
}


def too_much(which: str) -> str:
    root = json.loads(config("tables"))
    TOO_MUCH[which][0](root)
    return json.dumps(root)


@pytest.mark.parametrize("which", TOO_MUCH)
def test_more_than_is_supported(which: str) -> None:
    text = too_much(which)
    began = time.process_time()
    with pytest.raises(LoadError) as caught:
        Pipeline(text)
    assert TOO_MUCH[which][1] in str(caught.value)
    assert len(str(caught.value)) < 300
    assert time.process_time() - began < 2


@pytest.mark.parametrize("which", DEEP)
def test_json_that_is_too_deep_or_no_json(which: str) -> None:
    with pytest.raises(LoadError, match=r"not JSON|not the BMv2 JSON format|not an object"):
        Pipeline(DEEP[which])


def test_what_is_large_and_fits() -> None:
    """So that nothing real is refused."""
    root = json.loads(config("tables"))
    array("register_arrays", size=1 << 16, bitwidth=2048)(root)
    array("counter_arrays", size=1 << 20)(root)
    header(1 << 14, 8)(root)
    action(*conditionals(150), assign(nested(190, "+")), assign(nested(60, "/")))(root)
    Pipeline(json.dumps(root)).process(1, bytes(60))


def test_p4runtime_refuses_it_and_goes_on(features: Client) -> None:
    """All of these, and the program that there was is still there."""
    whole = features.get_config().config
    texts = {which: too_much(which) for which in TOO_MUCH} | DEEP
    for which, text in texts.items():
        changed = p4rt.ForwardingPipelineConfig(p4info=whole.p4info)
        changed.p4_device_config = text.encode()
        with pytest.raises(grpc.RpcError) as caught:
            features.set_config(changed)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, which
        # What is too much for Python alone may load as machine code; then it is not the program of
        # this P4Info.
        says = (
            "p4_device_config: ",
            "p4info and p4_device_config are not of the same program: ",
        )
        assert caught.value.details().startswith(says), which
    assert features.get_config().config == whole
    features.set_config(p4rt_config("p4rt_features"))
