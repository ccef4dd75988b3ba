# SPDX-License-Identifier: Apache-2.0
"""Random programs on headers with varbit fields, in stacks and unions: both engines do the same.

A program extracts headers, then copies, compares, adds, removes, pushes and pops them.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from c_differential import Pair
from p4reduce_native.compiler import find_compiler
from p4reduce_native.errors import NativeUnavailableError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "switch"))

from pipeline_programs import config

try:
    find_compiler()
except NativeUnavailableError as error:
    pytest.skip(f"no machine code: {error}", allow_module_level=True)

Json = dict[str, Any]

PROGRAMS = 3
FRAMES = 300
STATEMENTS = 14
KNOBS = 12
"""Bytes of the first header, which say how long varbit fields are, and which statements count."""
DEPTH = 3
WIDTHS = (1, 3, 4, 8, 12, 16, 33, 64, 72, 136)


def value(kind: str, what: Any) -> Json:
    return {"type": kind, "value": what}


def operation(op: str, left: Json | None, right: Json) -> Json:
    return value("expression", {"op": op, "left": left, "right": right})


def call(op: str, *parameters: Json) -> Json:
    return {"op": op, "parameters": list(parameters)}


class Maker:
    """Makes one program: types, then what is there of each, then what is done to that."""

    def __init__(self, generator: random.Random) -> None:
        self._random = generator
        self.root: Json = json.loads(config("passive"))
        self.types: dict[str, Json] = {}
        self.headers: dict[str, str] = {}
        """Name -> type, in the order of the wire."""
        self.stacks: list[str] = []
        self.unions: list[str] = []
        self.union_stacks: list[str] = []

    def make(self) -> str:
        root = self.root
        root["header_types"] = [t for t in root["header_types"] if t["name"] == "standard_metadata"]
        self.types["knobs_t"] = {"fields": [[f"k{n}", 8, False] for n in range(KNOBS)]}
        for number in range(3):
            self.types[f"t{number}"] = self._type()
        self._instances()
        ids = {name: number for number, name in enumerate(self.headers, 1)}
        root["headers"] = [
            {"name": "standard_metadata", "id": 0, "header_type": "standard_metadata"}
            | {"metadata": True, "pi_omit": True},
            *(
                {"name": name, "id": ids[name], "header_type": type_, "metadata": False}
                | {"pi_omit": True}
                for name, type_ in self.headers.items()
            ),
        ]
        for number, (name, type_) in enumerate(self.types.items(), 10):
            root["header_types"].append(type_ | {"name": name, "id": number})
        self._groups(ids)
        root["deparsers"][0]["order"] = list(self.headers)
        root["parsers"][0]["parse_states"] = [self._parser()]
        spec = value("field", ["standard_metadata", "egress_spec"])
        root["actions"] = []
        for number, stage in enumerate(("ingress", "egress")):
            body = [] if number else [call("assign", spec, value("hexstr", "0x1"))]
            self._statements(body)
            action = {"name": stage, "id": number, "runtime_data": [], "primitives": body}
            root["actions"].append(action)
            node = {"name": f"run_{stage}", "id": number, "action_id": number, "next_node": None}
            root["pipelines"][number] |= {"init_table": node["name"], "action_calls": [node]}
            root["pipelines"][number] |= {"tables": [], "conditionals": []}
        return json.dumps(root)

    # -- Headers -----------------------------------------------------------------------------------

    def _type(self) -> Json:
        """Fields around a varbit one, or none of those; whole bytes altogether."""
        draw = self._random
        fields: list[Any] = [
            [f"f{n}", draw.choice(WIDTHS), draw.random() < 0.2] for n in range(draw.randrange(5))
        ]
        fields = [[name, max(width, 2), signed] for name, width, signed in fields]
        bits = sum(field[1] for field in fields)
        if bits % 8 or not fields:
            fields.insert(draw.randrange(len(fields) + 1), ["pad", 8 - bits % 8, False])
        bits = sum(field[1] for field in fields)
        if draw.random() < 0.2:
            return {"fields": fields}
        most = draw.choice((8, 32, 64, 120, 128, 200, 320))
        fields.insert(draw.randrange(len(fields) + 1), ["v", "*"])
        if draw.random() < 0.15:
            fields, bits = [["v", "*"]], 0
        return {"fields": fields, "max_length": (bits + most) // 8}

    def _instances(self) -> None:
        draw = self._random
        self.headers["knobs"] = "knobs_t"
        for number in range(3):
            for letter in "ab":
                self.headers[f"{letter}{number}"] = f"t{number}"
        of_stacks = draw.choice(("t0", "t1", "t2"))
        for stack in ("s", "t"):
            self.stacks.append(stack)
            self.headers |= {f"{stack}[{n}]": of_stacks for n in range(DEPTH)}
        members = {"x": "t0", "y": "t1", "z": "t2"}
        self.unions += ["u", "w"]
        for stack in ("us", "ut"):
            self.union_stacks.append(stack)
            self.unions += [f"{stack}[{n}]" for n in range(DEPTH)]
        for union in self.unions:
            self.headers |= {f"{union}.{member}": type_ for member, type_ in members.items()}

    def _groups(self, ids: dict[str, int]) -> None:
        root = self.root
        root["header_stacks"] = [
            {"name": name, "id": number, "header_type": self.headers[f"{name}[0]"], "size": DEPTH}
            | {"header_ids": [ids[f"{name}[{n}]"] for n in range(DEPTH)]}
            for number, name in enumerate(self.stacks)
        ]
        members = [["x", "t0"], ["y", "t1"], ["z", "t2"]]
        root["header_union_types"] = [{"name": "u_t", "id": 0, "headers": members}]
        root["header_unions"] = [
            {"name": name, "id": number, "union_type": "u_t"}
            | {"header_ids": [ids[f"{name}.{member}"] for member, _ in members]}
            for number, name in enumerate(self.unions)
        ]
        numbers = {name: number for number, name in enumerate(self.unions)}
        root["header_union_stacks"] = [
            {"name": name, "id": number, "union_type": "u_t", "size": DEPTH}
            | {"header_union_ids": [numbers[f"{name}[{n}]"] for n in range(DEPTH)]}
            for number, name in enumerate(self.union_stacks)
        ]

    def _varbit(self, header: str) -> bool:
        return "max_length" in self.types[self.headers[header]]

    def _knob(self) -> Json:
        return value("field", ["knobs", f"k{self._random.randrange(KNOBS)}"])

    # -- What is done ------------------------------------------------------------------------------

    def _parser(self) -> Json:
        draw = self._random
        ops = [call("extract", value("regular", "knobs"))]
        for _ in range(9):
            kind = draw.random()
            if kind < 0.4:
                name = draw.choice([h for h in self.headers if h != "knobs"])
                what = value("regular", name)
            elif kind < 0.6:
                stack = draw.choice(self.stacks)
                what, name = value("stack", stack), f"{stack}[0]"
            elif kind < 0.85:
                stack, member = draw.choice(self.union_stacks), draw.choice("xyz")
                what, name = value("union_stack", [stack, member]), f"{stack}[0].{member}"
            else:
                ops.append(call("primitive", self._primitive()))
                continue
            if self._varbit(name):
                ops.append(call("extract_VL", what, value("expression", self._knob())))
            else:
                ops.append(call("extract", what))
        end = {"type": "default", "value": None, "mask": None, "next_state": None}
        state = {"name": "start", "id": 0, "parser_ops": ops, "transition_key": []}
        return state | {"transitions": [end]}

    def _statements(self, body: list[Json]) -> None:
        """Primitives, each behind a condition; what is compared is told by a knob."""
        for number in range(STATEMENTS):
            condition = operation("b2d", None, self._condition())
            target = value("hexstr", hex(len(body) + 2 + (number % 3 == 0)))
            body.append(call("_jump_if_zero", value("expression", condition), target))
            body.append(self._primitive())
            if number % 3 == 0:
                one = value("hexstr", hex(self._random.randrange(256)))
                body.append(call("assign", self._knob(), one))

    def _condition(self) -> Json:
        draw = self._random
        kind = draw.random()
        if kind < 0.3:
            return operation("==", value("header", "a0"), value("header", "b0"))
        if kind < 0.5:
            one, other = draw.sample(self.unions, 2)
            op = draw.choice(("==", "!="))
            return operation(op, value("header_union", one), value("header_union", other))
        if kind < 0.6:
            return operation("valid_union", None, value("header_union", draw.choice(self.unions)))
        if kind < 0.7:
            return operation("valid", None, value("header", draw.choice([*self.headers])))
        return operation(">", self._knob(), value("hexstr", hex(draw.randrange(200))))

    def _primitive(self) -> Json:
        draw = self._random
        headers = [h for h in self.headers if h != "knobs"]
        name = draw.choice(headers)
        alike = draw.choice([h for h in headers if self.headers[h] == self.headers[name]])
        kind = draw.randrange(9)
        if kind == 0:
            return call("add_header", value("header", name))
        if kind == 1:
            return call("remove_header", value("header", name))
        if kind in (2, 3):
            if self._varbit(name) and draw.random() < 0.5:
                fields = (value("field", [header, "v"]) for header in (name, alike))
                return call("assign_VL", *fields)
            return call("assign_header", value("header", name), value("header", alike))
        if kind in (4, 5):
            stack = draw.choice((value("header_stack", "s"), value("header_union_stack", "us")))
            count = value("hexstr", hex(draw.randrange(1, DEPTH + 2)))
            return call(draw.choice(("push", "pop")), stack, count)
        if kind == 6:
            return call("assign_header_stack", *(value("header_stack", s) for s in self.stacks))
        if kind == 7:
            stacks = (value("header_union_stack", s) for s in reversed(self.union_stacks))
            return call("assign_union_stack", *stacks)
        one, other = draw.sample(self.unions, 2)
        return call("assign_union", value("header_union", one), value("header_union", other))


@pytest.mark.parametrize("number", range(PROGRAMS))
def test_random_headers(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print("seed", seed)
    generator = random.Random(seed)
    pair = Pair(Maker(generator).make(), monkeypatch)
    for _ in range(FRAMES):
        knobs = bytes(8 * generator.randrange(6) for _ in range(KNOBS))
        if generator.random() < 0.1:
            knobs = generator.randbytes(KNOBS)
        body = generator.randbytes(generator.choice((0, 5, 30, 80, 200, 200, 200)))
        if generator.random() < 0.3:
            body = bytes(generator.choice((0, 0, 0, 1)) for _ in body)
        ((port, _),) = pair.process(0, knobs + body)
        assert port == 1
    pair.check()
