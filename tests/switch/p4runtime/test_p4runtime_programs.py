# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime tests' programs are what p4c makes of their sources."""

from __future__ import annotations

import shutil

import pytest
from compile_programs import COMPILER, compiled
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4rt_client import device_config, load_p4info


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
def test_committed_programs_are_up_to_date(program: str) -> None:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"needs {COMPILER} on PATH")
    made, p4info = compiled(program)
    assert text_format.Parse(p4info, p4info_pb2.P4Info()) == load_p4info(program)
    assert made == device_config(program).decode()
