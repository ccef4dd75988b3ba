# SPDX-License-Identifier: Apache-2.0
"""What is not made machine code is named, and the program runs in Python all the same."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from p4reduce_switch.codegen_c import NotNativeError
from p4reduce_switch.native_pipeline import NativePipeline
from p4reduce_switch.pipeline_choice import load_pipeline

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "switch"))

from pipeline_programs import config


def with_wide_metadata(root: Any) -> None:
    """Fields that would take half a megabyte of stack, each copied to the next."""
    count = 70
    fields = [[f"f{number}", 1 << 16] for number in range(count)]
    for part in range(0, count, 7):
        type_ = {"name": f"big_{part}_t", "id": 900 + part, "fields": fields[part : part + 7]}
        root["header_types"].append(type_)
        made = {"name": f"big_{part}", "id": 900 + part, "metadata": True}
        root["headers"].append(made | {"header_type": type_["name"]})
    for number in range(1, count):
        places = [[f"big_{n // 7 * 7}", f"f{n}"] for n in (number, number - 1)]
        parameters = [{"type": "field", "value": place} for place in places]
        root["actions"][0]["primitives"].append({"op": "assign", "parameters": parameters})
    last = {"type": "field", "value": [f"big_{(count - 1) // 7 * 7}", f"f{count - 1}"]}
    spec = {"type": "field", "value": ["standard_metadata", "egress_spec"]}
    root["actions"][0]["primitives"].append({"op": "assign", "parameters": [spec, last]})


@pytest.fixture
def too_wide() -> str:
    root = json.loads(config("tables"))
    with_wide_metadata(root)
    return json.dumps(root)


def test_the_reason_is_named(too_wide: str) -> None:
    with pytest.raises(NotNativeError, match="fields and values of more than 256 KiB in one func"):
        NativePipeline(too_wide)
    with pytest.raises(NotNativeError, match="256 KiB"):
        load_pipeline(too_wide, engine="native")


def test_the_interpreter_takes_over(too_wide: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        pipeline = load_pipeline(too_wide, engine="auto")
    assert not isinstance(pipeline, NativePipeline)
    [record] = caplog.records
    assert "is interpreted" in record.getMessage()
    assert "256 KiB" in record.getMessage()
    assert pipeline.process(0, bytes(60)) == load_pipeline(too_wide, engine="python").process(
        0, bytes(60)
    )


def test_a_drop_port_that_does_not_fit() -> None:
    with pytest.raises(NotNativeError, match="the drop port 512, which egress_spec cannot hold"):
        NativePipeline(config("tables"), drop_port=512)


def test_no_machine_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("P4REDUCE_CACHE_DIR", str(tmp_path / "empty"))
    pipeline = load_pipeline(config("tables"))
    assert pipeline.native is None
