# SPDX-License-Identifier: Apache-2.0
"""Programs made to harm: their strings become C as a part of an identifier or of a comment.

The C is compiled and run with the switch's own rights, so it is read here as a compiler would: with
comments taken out, nothing may be left of a string but letters, digits and underscores.
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_switch.codegen_c import NotNativeError
from p4reduce_switch.codegen_c.generate import generate
from p4reduce_switch.codegen_c.text import CNames, comment, plain
from p4reduce_switch.loader.load_program import load
from p4reduce_switch.native_pipeline import NativePipeline
from p4reduce_switch.program.ir import FieldRef
from p4reduce_switch.program.load_error import LoadError

SWITCH = Path(__file__).resolve().parents[1] / "switch"
sys.path[:0] = [str(SWITCH), str(SWITCH / "loader")]

from pipeline_programs import AGGREGATION, NAMES, config  # noqa: E402
from test_hostile_programs import (  # noqa: E402
    NAMES_ONLY,
    TOO_MUCH,
    names_of,
    renamed,
    scalars,
    too_much,
)

MARK = "INJECTED"
PAYLOADS = (
    f"*/{MARK}();/*",
    f"\\\n{MARK}();",
    f"??/\n{MARK}();",
    f'"{MARK}()"',
    f"\n#include <{MARK}>\n",
    f"q[{MARK}()]",
    f"//{MARK}",
    f"%>{MARK}<%",
    f"\r{MARK}()\u2028{MARK}()",
)
PLACES = 8  # in each program
PROGRAM_NAMES = (*NAMES, "p4rt_features", "p4rt_match_kinds", "p4reduce")
# What may be left once comments are out: C of ours, in ASCII, without strings.
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_CODE = re.compile(r"[A-Za-z0-9_ \n{}()\[\];,.=+\-*/%&|^~!<>?:]*")
_OWN_STRINGS = re.compile(
    r'#include "p4/[a-z]+\.h"|#pragma GCC [a-z]+(?: ignored)? ?\(?"[A-Za-z-]+"\)?'
)


def text_of(name: str) -> bytes:
    return AGGREGATION.read_bytes() if name == "p4reduce" else config(name)


def check(source: str) -> None:
    """Assert that C has nothing but what the generator wrote itself."""
    assert source.isascii()
    assert "\\" not in source
    assert "??" not in source
    assert "//" not in _COMMENT.sub("", source)
    code = _OWN_STRINGS.sub("", _COMMENT.sub("", source))
    lines = [line for line in code.splitlines() if not line.lstrip().startswith("#")]
    assert _CODE.fullmatch("\n".join(lines))
    directives = {line.split()[0] for line in code.splitlines() if line.lstrip().startswith("#")}
    assert directives <= {"#if", "#endif"}, directives
    # A mark is within an identifier of ours, after its prefix.
    for word in re.findall(r"[A-Za-z0-9_]*INJECTED[A-Za-z0-9_]*", code):
        assert re.match(
            r"(f|arg|valid|at|tail|table|value_set|counter|register|meter|size|bytes)_|"
            r"(ranges_(table|value_set))_",
            word,
        ), word


def generates(root: Any) -> bool:
    """Whether C comes of a program; asserts that it is clean, or that it is refused properly."""
    try:
        source = generate(load(json.dumps(root))).source
    except (LoadError, NotNativeError):
        return False
    check(source)
    return True


@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_programs_as_they_are(name: str) -> None:
    check(generate(load(text_of(name))).source)


@pytest.mark.long
def test_a_string_in_every_place() -> None:
    """Strings for strings, numbers and flags: all of one kind at once."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    made = 0
    for name in PROGRAM_NAMES:
        text = text_of(name)
        shapes = list(dict.fromkeys(shape for shape, _, _ in scalars(json.loads(text))))
        for wanted in generator.sample(shapes, min(PLACES, len(shapes))):
            root = json.loads(text)
            for shape, container, key in scalars(root):
                if shape == wanted:
                    container[key] = generator.choice(PAYLOADS)
            made += generates(root)
    assert made > 5, "hardly anything of this got as far as the generator"


@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_every_name_at_once(name: str) -> None:
    """The program is still the same one, so all of its names get to where names get."""
    root = json.loads(text_of(name))
    names = names_of(root)
    payloads = PAYLOADS + NAMES_ONLY
    first = PROGRAM_NAMES.index(name)
    for payload in [payloads[(first + step) % len(payloads)] for step in range(4)]:
        assert generates(renamed(root, names, lambda name, p=payload: p + name + p))


def test_sources_of_statements() -> None:
    """What p4c notes of the P4 source becomes comments."""
    root = json.loads(config("tables"))
    for payload in PAYLOADS:
        for _, container, key in list(scalars(root)):
            if key in ("filename", "source_fragment"):
                container[key] = payload
        assert generates(root)


def test_names_that_c_has_a_meaning_for() -> None:
    """Keywords, macros of the compiler and of the run-time: a prefix makes them harmless."""
    words = (
        "int",
        "main",
        "__LINE__",
        "linux",
        "NULL",
        "p4r_run",
        "P4R_LIMBS",
        "program",
        "i",
        "at",
    )
    root = json.loads(config("state"))
    names = sorted(names_of(root))
    for start in range(0, len(names), len(words))[:3]:
        mapping = dict(zip(names[start:], words, strict=False))
        changed = renamed(root, set(mapping), lambda name, m=mapping: m[name])
        try:
            NativePipeline(json.dumps(changed))
        except NativeUnavailableError as error:
            pytest.skip(str(error))
        except LoadError:
            continue  # two things of one kind have one name


def test_numbers_changed_at_random() -> None:
    """Any number in any place: a program that loads, or an error of ours."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    for name in ("tables", "stacks", "varbits", "hashes", "peeking"):
        text = config(name)
        for _ in range(20):
            root = json.loads(text)
            numbers = [
                (container, key)
                for _, container, key in scalars(root)
                if isinstance(container[key], int) and not isinstance(container[key], bool)
            ]
            for container, key in generator.sample(numbers, 3):
                container[key] = generator.choice((0, 1, 7, 65, 1000, 65536, 2**31, -1, 2**70))
            generates(root)


@pytest.mark.parametrize("which", TOO_MUCH)
def test_more_than_is_supported(which: str) -> None:
    """What the loader lets pass ends with a reason, not with a huge text."""
    said = ""
    try:
        generated = generate(load(too_much(which)))
    except (LoadError, NotNativeError) as error:
        said = str(error)
    assert len(said) < 300
    assert said or len(generated.source) < 1 << 22


def test_comments_and_identifiers() -> None:
    for payload in PAYLOADS:
        made = comment(payload)
        assert made.startswith("/* ")
        assert made.endswith(" */")
        assert not re.search(r"[*\\?\n\r\"'#%$@`]", made[3:-3])
        assert re.fullmatch("[A-Za-z0-9_]*", plain(payload))
    names = CNames()
    taken = {names.field(FieldRef("h", text, 8)) for text in ("a b", "a_b", "a\0b", "a.b")}
    assert len(taken) == 4
    long = [names.of("table", "x" * 70000 + str(number)) for number in range(3)]
    assert len(set(long)) == 3
    assert all(len(name) < 100 for name in long)
