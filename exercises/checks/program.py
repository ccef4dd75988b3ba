# SPDX-License-Identifier: Apache-2.0
"""Compiles a P4 file and runs it in the embedded switch, within this process."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.program.load_error import LoadError
from p4reduce_switch.state.multicast import Replica

from exercises.checks.frames import LENGTH, Frame, Lanes, signed
from exercises.checks.report import UnusableError, WrongError

COMPILER = "p4c-bm2-ss"
GET_COMPILER = "apt-get install p4lang-p4c, from p4lang's packages: docs/bmv2.md"
INCLUDE = Path(__file__).parent.parent / "include"
_GROUP, _PORTS = 1, (1, 2)


@cache
def compiled(source: Path) -> str:
    """Return p4c's JSON for a program. Raises UnusableError: it does not compile."""
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise UnusableError(f"{COMPILER} is not on PATH: {GET_COMPILER}")
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "lab.json"
        options = ["--std", "p4-16", "--Wdisable=unused", "-I", str(INCLUDE), "-o", str(target)]
        done = subprocess.run(
            [compiler, *options, str(source)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UnusableError(f"{source} does not compile:\n{done.stderr.strip()}")
        return target.read_text()


class Switch:
    """A switch that runs a student's program, with ranks 0 and 1 at ports 1 and 2."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self._json: dict[str, Any] = json.loads(compiled(source))
        try:
            self._pipeline = Pipeline(compiled(source))
        except LoadError as error:
            raise UnusableError(f"{source} does not load: {error}") from None
        self._pipeline.multicast.insert(_GROUP, [Replica(port, 0) for port in _PORTS])
        self.sent = 0

    def send(self, frame: Frame, port: int | None = None) -> dict[int, list[Frame]]:
        """Send a frame into its rank's port, or another one; return what comes out, by port."""
        self.sent += 1
        out: dict[int, list[Frame]] = {}
        for at, copy in self._pipeline.process(port or frame.port, frame.pack()):
            if len(copy) < LENGTH:
                raise WrongError(
                    f"frame {self.sent} ({frame}): what came out at port {at} has {len(copy)} "
                    f"bytes, not {LENGTH}: a header is no longer valid",
                    "assign hdr.lanes.a to hdr.lanes.d one by one: p4c drops the header where "
                    "hdr.lanes = {...} reads itself",
                    self.where("lanes", "a"),
                )
            out.setdefault(at, []).append(Frame.unpack(copy))
        return out

    def quiet(self, frame: Frame, why: str, hint: str) -> None:
        """Send a frame that nothing may come of."""
        out = self.send(frame)
        if out:
            raise WrongError(
                f"frame {self.sent} ({frame}) led to a frame at {ports_text(out)}: {why}",
                hint,
                self.where("egress"),
            )

    def answer(self, frame: Frame, at: tuple[int, ...], hint: str, what: str) -> Frame:
        """Send a frame, and return what comes out, the same once at each of these ports."""
        out = self.send(frame)
        if sorted(out) != sorted(at) or any(len(copies) != 1 for copies in out.values()):
            raise WrongError(
                f"frame {self.sent} ({frame}): {what} should come out at "
                f"{' and '.join(f'port {one}' for one in at)}; what came: {ports_text(out)}",
                hint,
                self.where("egress"),
            )
        return out[at[0]][0]

    def expect(self, got: Lanes, wanted: Lanes, what: str, hint: str) -> None:
        """Compare lanes."""
        for name, one, other in zip("abcd", got, wanted, strict=True):
            if one != other:
                raise WrongError(
                    f"frame {self.sent}: {what}: lane {name} is {signed(one)}, "
                    f"should be {signed(other)}",
                    hint,
                    self.where("lanes", name),
                )

    def cells(self, register: str) -> list[int] | None:
        """A register's cells; None where the program has none of that name."""
        for name, found in self._pipeline.registers.items():
            if name.rpartition(".")[2] == register:
                return list(found.cells)
        return None

    def where(self, *target: str) -> str:
        """The lines that write a field ("lab", "count"), a register ("frames") or "egress"."""
        found = sorted(set(self._writers(target)))
        name = self.source.name
        if not found:
            return f"no line of {name} assigns {_name(target)} by itself"
        return "; ".join(f"{name}:{line}: {text}" for line, text in found[:4])

    def _writers(self, target: tuple[str, ...]) -> Iterator[tuple[int, str]]:
        for action in self._json["actions"]:
            for primitive in action["primitives"]:
                info = primitive.get("source_info", {})
                own = Path(info.get("filename", "")).name == self.source.name
                text = str(info.get("source_fragment", ""))
                # p4c also names the parameters of an action that a value is copied into.
                if own and _writes(primitive, target) and re.search(r"[^=]=[^=]|\(.*\)", text):
                    yield int(info["line"]), text


def _name(target: tuple[str, ...]) -> str:
    if target == ("egress",):
        return "sm.egress_spec or sm.mcast_grp"
    return f"hdr.{'.'.join(target)}" if len(target) > 1 else f"register {target[0]}"


def _writes(primitive: dict[str, Any], target: tuple[str, ...]) -> bool:
    operation, parameters = primitive["op"], primitive["parameters"]
    if operation in ("mark_to_drop", "exit"):
        return target == ("egress",)
    if operation == "register_write":
        return str(parameters[0]["value"]).rpartition(".")[2] in target
    if not parameters or parameters[0]["type"] != "field":
        return False
    header, field = parameters[0]["value"]
    if target == ("egress",):
        return field in ("egress_spec", "mcast_grp")
    return (header, field) == target


def ports_text(out: dict[int, Any]) -> str:
    """For people."""
    if not out:
        return "nothing at all"
    return ", ".join(
        f"port {port}" + (f" {len(copies)} times" if len(copies) != 1 else "")
        for port, copies in sorted(out.items())
    )
