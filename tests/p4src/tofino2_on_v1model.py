# SPDX-License-Identifier: Apache-2.0
"""The Tofino 2 program's own steps as a program for v1model, so that they can be run.

There is no Tofino here, and no model of one. But what a step of a register does is plain P4: its
body is put between a read and a write, word for word. Tables, actions and everything in common/
stay as they are; around them is the frame in tofino2_glue.p4.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GLUE = Path(__file__).with_name("tofino2_glue.p4")

# One step of a register, `RegisterAction<…>(register) step = { void apply(…) { … } };`, an action
# that takes it, the register, and what a step says of its comparisons.
_STEP = re.compile(
    r"RegisterAction2?<[^(]*>\((?P<register>\w+)\)\s*(?P<name>\w+)\s*=\s*\{\s*"
    r"void apply\((?P<parameters>[^)]*)\)\s*(?P<body>\{)"
)
_TAKEN = re.compile(
    r"action (?P<name>\w+)\(\)\s*\{\s*(?P<first>[\w.]+) = (?P<step>\w+)\.execute\("
    r"(?P<index>[^,()]+)(?:,\s*(?P<second>[\w.]+))?\);(?P<more>[^}]*)\}"
)
_REGISTER = re.compile(r"\bRegister<(\w+|bit<\d+>), index_t>\((\w+)\)\s*(\w+);")
_ARCHITECTURE = "#include <core.p4>\n#define V1MODEL_VERSION 20200408\n#include <v1model.p4>"
_PREDICATE = re.compile(r"this\.predicate\((.*?)\);", re.DOTALL)


@dataclass(frozen=True)
class Step:
    """One thing that a frame may do with a register.

    Attributes:
        register: its name.
        kept: what the register holds is called in the body; its type is `type`.
        outputs: type and name of what goes out.
    """

    register: str
    type: str
    kept: str
    outputs: tuple[tuple[str, str], ...]
    body: str


Edit = tuple[str, str]


def source(*edits: Edit) -> str:
    """Return the P4 program, with what each edit names once replaced."""
    text = re.sub(
        r"^<(.*)>$",
        lambda found: (ROOT / found[1]).read_text(),
        GLUE.read_text(),
        flags=re.MULTILINE,
    )
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times, not once"
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory() as scratch:
        given = Path(scratch, "given.p4")
        given.write_text(text.replace('#include "../', '#include "'))
        command = ["cpp", "-P", "-undef", "-I", str(ROOT / "p4src"), "-I", str(ROOT), str(given)]
        expanded = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return f"{_ARCHITECTURE}\n{_plain(expanded)}"


@cache
def program(*edits: Edit) -> bytes:
    """Return what p4c makes of it."""
    compiler = shutil.which("p4c-bm2-ss")
    assert compiler is not None
    with tempfile.TemporaryDirectory() as scratch:
        given, made = Path(scratch, "tofino2.p4"), Path(scratch, "tofino2.json")
        given.write_text(source(*edits))
        subprocess.run(
            [compiler, "--std=p4-16", "--arch=v1model", "--Wdisable", "-o", str(made), str(given)],
            check=True,
        )
        return made.read_bytes()


def _plain(text: str) -> str:
    """Write each step of a register as a read, its body and a write."""
    steps: dict[str, Step] = {}
    while found := _STEP.search(text):
        end = _closing(text, found.start("body"))
        kept, *outputs = (part.split() for part in found["parameters"].split(","))
        steps[found["name"]] = Step(
            found["register"],
            kept[1],
            kept[2],
            tuple((kind, name) for _, kind, name in outputs),
            text[found.end("body") : end],
        )
        rest = text[end + 1 :]
        text = text[: found.start()] + rest[rest.index("};") + 2 :]
    text = _TAKEN.sub(
        lambda found: _action(found, steps[found["step"]]),
        text,
    )
    assert ".execute(" not in text.replace("rate.execute", ""), "a step was not understood"
    text = _REGISTER.sub(lambda found: _registers(found[1], found[2], found[3]), text)
    return text.replace(
        "DirectCounter<bit<64>>(CounterType_t.PACKETS_AND_BYTES)",
        "direct_counter(CounterType.packets_and_bytes)",
    )


def _closing(text: str, opening: int) -> int:
    depth = 0
    for place in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return place
    raise AssertionError("a brace has no other one")


def _action(taken: re.Match[str], step: Step) -> str:
    """Write an action that takes a step."""
    targets = [taken["first"], *filter(None, [taken["second"]])]
    index = f"(bit<32>)({taken['index']})"
    assert len(targets) == len(step.outputs)
    if step.type == "pair_t":
        words = [(f"{step.register}_{part}", f"{step.kept}.{part}") for part in ("low", "high")]
    else:
        words = [(step.register, step.kept)]
    lines = [f"{step.type} {step.kept};"]
    lines += [f"{register}.read({word}, {index});" for register, word in words]
    lines += [f"{kind} {output};" for kind, output in step.outputs]
    lines.append(_PREDICATE.sub(_one_bit, step.body))
    lines += [f"{register}.write({index}, {word});" for register, word in words]
    lines += [
        f"{target} = {output};" for target, (_, output) in zip(targets, step.outputs, strict=True)
    ]
    lines.append(taken["more"])
    return f"action {taken['name']}() {{ {' '.join(lines)} }}"


def _one_bit(found: re.Match[str]) -> str:
    """A predicate is one bit: which one, say the comparisons as a number."""
    number = " + ".join(
        f"(({comparison.strip()}) ? 8w{1 << place} : 8w0)"
        for place, comparison in enumerate(found[1].split(","))
    )
    return f"8w1 << ({number});"


def _registers(kind: str, size: str, name: str) -> str:
    if kind != "pair_t":
        return f"register<{kind}, bit<32>>({size}) {name};"
    return " ".join(
        f"register<bit<32>, bit<32>>({size}) {name}_{part};" for part in ("low", "high")
    )
