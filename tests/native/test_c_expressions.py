# SPDX-License-Identifier: Apache-2.0
"""Random expressions over fields of all widths: machine code computes what Python does."""

from __future__ import annotations

import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import p4reduce_switch.pipeline as pipeline_module
import pytest
from c_differential import Pair
from p4reduce_native.compiler import find_compiler
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_switch.codegen_c import NotNativeError
from p4reduce_switch.loader.load_program import load
from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import Binary, Const, Expr, FieldRef, Ternary, Unary
from p4reduce_switch.program.load_error import LoadError
from p4reduce_switch.state.multicast import Replica

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "switch"))

from pipeline_programs import config

try:
    find_compiler()
except NativeUnavailableError as error:
    pytest.skip(f"no machine code: {error}", allow_module_level=True)

WIDTHS = (1, 3, 7, 8, 9, 16, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 192, 200, 256, 300)
DATA = ("+", "-", "*", "/", "%", "&", "|", "^", "&", "+", "-")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
PROGRAMS = 6
STATEMENTS = 15
FRAMES = 60


class Maker:
    """Makes expressions and statements."""

    def __init__(self, generator: random.Random, fields: list[FieldRef]) -> None:
        self._random = generator
        self._fields = fields

    def data(self, depth: int) -> Expr:
        draw = self._random
        if depth == 0 or draw.random() < 0.1:
            if draw.random() < 0.3:
                value = draw.choice((0, 1, 2, 255, draw.getrandbits(draw.choice(WIDTHS))))
                return Const(-value if draw.random() < 0.1 else value)
            return draw.choice(self._fields)
        kind = draw.random()
        if kind < 0.5:
            return Binary(draw.choice(DATA), self.data(depth - 1), self.data(depth - 1))
        if kind < 0.6:
            full = Const((1 << draw.choice(WIDTHS)) - 1)
            return Binary("&", self.data(depth - 1), full)
        if kind < 0.7:
            by: Expr = Const(draw.randrange(140))
            if draw.random() < 0.5:
                by = Binary("&", draw.choice(self._fields), Const(255))
            return Binary(draw.choice(("<<", ">>")), self.data(depth - 1), by)
        if kind < 0.8:
            cast = draw.choice(("two_comp_mod", "sat_cast", "usat_cast"))
            return Binary(cast, self.data(depth - 1), Const(draw.choice(WIDTHS)))
        if kind < 0.87:
            return Unary("~", self.data(depth - 1))
        if kind < 0.92:
            return Unary("b2d", self.condition(depth - 1))
        return Ternary(self.condition(depth - 1), self.data(depth - 1), self.data(depth - 1))

    def condition(self, depth: int) -> Expr:
        draw = self._random
        kind = draw.random()
        if depth > 0 and kind < 0.2:
            operator = draw.choice(("and", "or", "==b", "!=b"))
            return Binary(operator, self.condition(depth - 1), self.condition(depth - 1))
        if depth > 0 and kind < 0.3:
            return Unary("not", self.condition(depth - 1))
        if kind < 0.4:
            return Unary("d2b", self.data(depth))
        return Binary(draw.choice(COMPARISONS), self.data(depth), self.data(depth))

    def statements(self, count: int, depth: int) -> list[ir.Statement]:
        made: list[ir.Statement] = []
        for _ in range(count):
            if depth and self._random.random() < 0.15:
                then = tuple(self.statements(3, depth - 1))
                otherwise = tuple(self.statements(2, depth - 1))
                made.append(ir.If(self.condition(2), then, otherwise))
                continue
            target = self._random.choice(self._fields)
            made.append(ir.Primitive("assign", (target, self.data(3)), ir.NOWHERE))
        return made


def random_program(generator: random.Random) -> ir.Program:
    """One header whose fields come in, are computed with, and go out again."""
    base = load(config("passive"))
    fields = []
    for number in range(14):
        width = generator.choice(WIDTHS)
        signed = width > 1 and generator.random() < 0.3
        fields.append(FieldRef("own", f"f{number}", width, signed))
    pad = -sum(field.width for field in fields) % 8
    if pad:
        fields.append(FieldRef("own", "pad", pad))
    header = ir.HeaderInstance("own", tuple(fields), is_metadata=False)
    local = [FieldRef("local", f"m{n}", generator.choice(WIDTHS)) for n in range(4)]
    metadata = ir.HeaderInstance("local", tuple(local), is_metadata=True)
    maker = Maker(generator, fields + local)
    bodies = maker.statements(STATEMENTS, 2), maker.statements(4, 1)
    return program_of(base, header, metadata, *bodies)


def program_of(
    base: ir.Program,
    header: ir.HeaderInstance,
    metadata: ir.HeaderInstance,
    early: list[ir.Statement],
    late: list[ir.Statement],
) -> ir.Program:
    """A header that comes in and goes out again, and what happens to it in ingress and egress."""
    actions = {
        1: ir.Action(1, "early", (), tuple(early), ir.NOWHERE),
        2: ir.Action(2, "late", (), tuple(late), ir.NOWHERE),
    }
    start = ir.ParserState("start", (ir.Extract("own"),), (), (), None)
    standard = {n: h for n, h in base.headers.items() if n == "standard_metadata"}

    def control(name: str, number: int) -> ir.Control:
        return ir.Control(name, "run", {"run": ir.DirectCall("run", number, None, ir.NOWHERE)})

    return replace(
        base,
        headers={**standard, "own": header, "local": metadata},
        parser=ir.Parser("start", {"start": start}),
        verify=(),
        update=(),
        ingress=control("ingress", 1),
        egress=control("egress", 2),
        deparser=("own",),
        actions=actions,
        calculations={},
        kept=ir.StatefulObjects(),
    )


def small_pair(
    monkeypatch: pytest.MonkeyPatch, early: list[tuple[Any, ...]], late: list[tuple[Any, ...]]
) -> Pair:
    """A program with one header of 8 and 24 bits, and primitives in ingress and egress."""
    header = ir.HeaderInstance("own", (SMALL, LARGE), is_metadata=False)
    metadata = ir.HeaderInstance("local", (), is_metadata=True)
    bodies = [
        [ir.Primitive(op, tuple(args), ir.NOWHERE) for op, *args in part] for part in (early, late)
    ]
    program = program_of(BASE, header, metadata, *bodies)
    monkeypatch.setattr(pipeline_module, "load", lambda _: program)
    return Pair("", monkeypatch)


BASE = load(config("passive"))
SMALL, LARGE, OWN = FieldRef("own", "a", 8), FieldRef("own", "b", 24), ir.HeaderValue("own")


def test_the_target_sets_the_instance_type_after_ingress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the program has set, as in simple_switch."""
    kind = BASE.intrinsic["instance_type"]
    pair = small_pair(monkeypatch, [("assign", kind, Const(77))], [("assign", LARGE, kind)])
    assert pair.process(0, b"\xff" * 4) == [(0, b"\xff" + bytes(3))]


def test_a_header_that_is_added_again_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = small_pair(monkeypatch, [("remove_header", OWN), ("add_header", OWN)], [])
    assert pair.process(0, b"\xff" * 6) == [(0, bytes(4) + b"\xff" * 2)]


def test_copies_of_a_group_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """simple_switch forgets `truncate` when it makes copies."""
    group = ("assign", BASE.intrinsic["mcast_grp"], Const(1))
    pair = small_pair(monkeypatch, [("truncate", Const(2)), group], [])
    for pipeline in pair.both:
        pipeline.multicast.insert(1, [Replica(3, 0)])
    assert pair.process(0, b"\xff" * 6) == [(3, b"\xff" * 6)]


# Seeds of programs that were wrong once: a negative number of 64 bits beside other fields.
KNOWN = (3043603779,)


@pytest.mark.long
@pytest.mark.parametrize("known", [*KNOWN, *[None] * PROGRAMS])
def test_random_expressions(known: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = known or int(os.environ.get("SEED") or random.randrange(1 << 32))
    print("seed", seed)
    generator = random.Random(seed)
    for _ in range(40):
        program = random_program(generator)
        monkeypatch.setattr(pipeline_module, "load", lambda _, program=program: program)
        try:
            pair = Pair("", monkeypatch)
            break
        except (LoadError, NotNativeError) as error:
            print(error)  # a value of too many bits, say: another one
    size = program.headers["own"].size
    for _ in range(FRAMES):
        kind = generator.random()
        if kind < 0.2:
            frame = bytes(generator.choice((0, 255)) for _ in range(size))
        elif kind < 0.4:
            frame = bytes(generator.choice((0, 0, 0, 1, 128)) for _ in range(size))
        else:
            frame = generator.randbytes(size)
        ((_, out),) = pair.process(0, frame + b"tail")
        assert len(out) == size + 4
    pair.check()
