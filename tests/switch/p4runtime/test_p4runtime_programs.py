# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime tests' programs are what p4c makes of their sources."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4rt_client import PROGRAMS, device_config, load_p4info

COMPILER = "p4c-bm2-ss"


def without_compiler(text: bytes | str) -> Any:
    """The JSON of a program, less what depends on the compiler's version."""
    program = json.loads(text)
    del program["__meta__"], program["program"]
    return program


@pytest.mark.p4c
@pytest.mark.parametrize(
    "program",
    [
        "p4rt_features",
        "p4rt_match_kinds",
        "profiles",
        "meters",
        "digests",
        "idle",
        "unused",
        "header_copies",
        "tuple_digests",
        "value_set_kinds",
    ],
)
def test_committed_programs_are_up_to_date(program: str, tmp_path: Path) -> None:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"needs {COMPILER} on PATH")
    subprocess.run(
        [
            COMPILER,
            "--std",
            "p4-16",
            f"{program}.p4",
            "-o",
            str(tmp_path / "json"),
            "--p4runtime-files",
            str(tmp_path / "p4info.txtpb"),
        ],
        cwd=PROGRAMS,
        check=True,
        timeout=240,
    )
    made = text_format.Parse((tmp_path / "p4info.txtpb").read_text(), p4info_pb2.P4Info())
    assert made == load_p4info(program)
    assert without_compiler((tmp_path / "json").read_text()) == without_compiler(
        device_config(program)
    )
