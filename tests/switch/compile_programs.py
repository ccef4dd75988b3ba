# SPDX-License-Identifier: Apache-2.0
"""Compile the test programs: programs/NAME.p4 to NAME.json, and to NAME.p4info.txtpb if committed.

The JSON is p4c's, without source lines unless a test reads them. An object that fits on a line
stands on one, so a changed program has a short diff.

    python tests/switch/compile_programs.py [NAME...]
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
COMPILER = "p4c-bm2-ss"
WITH_LINES = frozenset(
    {"loops", "messages", "meters", "profiles", "replay", "tables", "tuple_digests"}
)
"""Programs whose lines a test reads. Those of refused/ keep theirs, because errors name lines."""
_COLUMNS = 120


def program_names() -> list[str]:
    """Return all programs, as paths below programs/ without a suffix."""
    return sorted(str(p.relative_to(PROGRAMS).with_suffix("")) for p in PROGRAMS.rglob("*.p4"))


def compiled(name: str) -> tuple[str, str]:
    """Return a program's JSON, as it is committed, and its P4Info; "" if none is committed.

    Raises:
        FileNotFoundError: p4c is not on PATH.
        subprocess.CalledProcessError: the program does not compile.
    """
    source = PROGRAMS / f"{name}.p4"
    with tempfile.TemporaryDirectory() as scratch:
        made, p4info = Path(scratch, "json"), Path(scratch, "p4info.txtpb")
        command = [COMPILER, "--arch", "v1model", source.name, "-o", made]
        if (PROGRAMS / f"{name}.p4info.txtpb").exists():
            command += ["--p4runtime-files", p4info]
        # From the source's folder, so that no path of this machine gets into the JSON.
        subprocess.run(command, cwd=source.parent, check=True, capture_output=True, timeout=240)
        root = json.loads(made.read_text())
        if name not in WITH_LINES and not name.startswith("refused/"):
            root = _without_lines(root)
        return _laid_out(root) + "\n", p4info.read_text() if p4info.exists() else ""


def _without_lines(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_lines(value) for key, value in node.items() if key != "source_info"}
    if isinstance(node, list):
        return [_without_lines(value) for value in node]
    return node


def _laid_out(node: Any, indent: int = 0) -> str:
    """The JSON of a node: on one line if it fits there, else each item on lines of its own."""
    line = json.dumps(node, ensure_ascii=False)
    if indent + len(line) < _COLUMNS or not node or not isinstance(node, dict | list):
        return line
    inner = indent + 1
    if isinstance(node, dict):
        parts = [f"{json.dumps(key)}: {_laid_out(value, inner)}" for key, value in node.items()]
    else:
        parts = [_laid_out(value, inner) for value in node]
    first, last = "{}" if isinstance(node, dict) else "[]"
    return first + f",\n{' ' * inner}".join(parts) + last


def main() -> None:
    if shutil.which(COMPILER) is None:
        sys.exit(f"{COMPILER} is not on PATH: install p4lang-p4c (docs/bmv2.md)")
    for name in sys.argv[1:] or program_names():
        try:
            program, p4info = compiled(name)
        except subprocess.CalledProcessError as error:
            sys.exit(f"{name}.p4: {error.stderr.decode()}")
        (PROGRAMS / f"{name}.json").write_text(program)
        if p4info:
            (PROGRAMS / f"{name}.p4info.txtpb").write_text(p4info)
        print(name)


if __name__ == "__main__":
    main()
