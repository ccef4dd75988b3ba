# SPDX-License-Identifier: Apache-2.0
"""The P4 programs that the pipeline's tests run: programs/*.p4, with p4c's JSON beside each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p4reduce_switch.native_pipeline import NativePipeline
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.pipeline_choice import Engine

PROGRAMS = Path(__file__).parent / "programs"
AGGREGATION = PROGRAMS.parents[2] / "p4src" / "compiled" / "p4reduce.json"
NAMES = (
    "checksums",
    "constructs",
    "corners",
    "digests",
    "drop_copy",
    "elements",
    "flow",
    "hashes",
    "header_copies",
    "idle",
    "loops",
    "many_paths",
    "messages",
    "meters",
    "operators",
    "parsing",
    "passive",
    "peeking",
    "profiles",
    "queues",
    "replay",
    "replication",
    "stacks",
    "state",
    "tables",
    "tuple_digests",
    "union_copies",
    "union_elements",
    "union_stacks",
    "unions",
    "unused",
    "value_set_kinds",
    "value_sets",
    "varbit_fields",
    "varbits",
)
REFUSED = tuple(sorted(path.stem for path in (PROGRAMS / "refused").glob("*.p4")))


def config(name: str) -> bytes:
    return (PROGRAMS / f"{name}.json").read_bytes()


ENGINES = {"native": NativePipeline, "python": Pipeline}
_engine = "native"


def use_engine(name: str) -> None:
    """What `make` and `load` make from now on; the fixture `engine` calls it."""
    global _engine
    _engine = name


def engine_of_servers() -> Engine:
    """The engine of a P4Runtime server in the test."""
    return "python" if _engine == "python" else "auto"


def make(text: bytes | str, **options: Any) -> Pipeline:
    """A program on the engine that the test runs with."""
    return ENGINES[_engine](text, **options)


def load(name: str) -> Pipeline:
    return make(config(name))
