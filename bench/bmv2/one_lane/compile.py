# SPDX-License-Identifier: Apache-2.0
"""Compile p4src/ with one register a lane instead of wide words, for bench/bmv2/compare.py.

The two programs differ in lanes.p4 and in what a `word_h` is, and in nothing else:

- one_lane: does all that the wide words do, with overflow;
- one_lane_bare: adds, and leaves out overflow.

The output is committed next to this file, so that the benchmark needs no p4c. It is compressed,
as it says everything 256 times. sources.sha256 is the fingerprint of the p4src/ that it is from.

    python -m bench.bmv2.one_lane.compile
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
WIDE = "    word_t lanes;\n"
NARROW = "".join(f"    bit<32> lane{lane:02o};\n" for lane in range(64))
WITHOUT_OVERFLOW = "#define WITHOUT_OVERFLOW\n"


def load_compiler() -> ModuleType:
    """tools/compile_p4.py, so that all programs are compiled the same way."""
    spec = importlib.util.spec_from_file_location("compile_p4", ROOT / "tools" / "compile_p4.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_variant(name: str, prefix: str) -> None:
    """Write NAME.json.gz and NAME.p4info.txtpb.gz.

    Raises:
        ValueError: p4src/ is no longer what this script knows how to change.
    """
    compiler = load_compiler()
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "p4src")
        shutil.copytree(ROOT / "p4src", source)
        types = source / "v1model" / "target.p4"
        text = types.read_text()
        if text.count(WIDE) != 1:
            raise ValueError(
                f"{types.name} has {WIDE.strip()!r} {text.count(WIDE)} times, not once"
            )
        types.write_text(text.replace(WIDE, NARROW))
        lanes = source / "v1model" / "lanes.p4"
        lanes.write_text(prefix + (HERE / "lanes.p4").read_text())
        compiler.SOURCE_DIR = source  # type: ignore[attr-defined]
        compiler.compile_program(Path(scratch, "out"), names=["p4reduce"])
        program = json.loads(Path(scratch, "out", "p4reduce.json").read_text())
        small = json.dumps(_without_places(program), separators=(",", ":")).encode()
        # Without a time stamp: the same sources give the same file.
        p4info = Path(scratch, "out", "p4reduce.p4info.txtpb").read_bytes()
        for suffix, content in (("json", small), ("p4info.txtpb", p4info)):
            (HERE / f"{name}.{suffix}.gz").write_bytes(gzip.compress(content, mtime=0))
    print(f"{name}: {len(small):,} bytes of JSON")


def _without_places(node: Any) -> Any:
    """The JSON without what it says of where in the source something was."""
    if isinstance(node, dict):
        return {key: _without_places(value) for key, value in node.items() if key != "source_info"}
    if isinstance(node, list):
        return [_without_places(value) for value in node]
    return node


def main() -> None:
    try:
        compile_variant("one_lane", "")
        compile_variant("one_lane_bare", WITHOUT_OVERFLOW)
        (HERE / "sources.sha256").write_text(load_compiler().fingerprint() + "\n")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)


if __name__ == "__main__":
    main()
