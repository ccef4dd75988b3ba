# SPDX-License-Identifier: Apache-2.0
"""The P4 programs that the pipeline's tests run: programs/*.p4, with p4c's JSON beside each."""

from __future__ import annotations

from pathlib import Path

from p4reduce_switch.pipeline import Pipeline

PROGRAMS = Path(__file__).parent / "programs"
AGGREGATION = PROGRAMS.parents[2] / "p4src" / "compiled" / "p4reduce.json"
NAMES = (
    "checksums",
    "digests",
    "elements",
    "flow",
    "hashes",
    "idle",
    "many_paths",
    "messages",
    "meters",
    "operators",
    "parsing",
    "passive",
    "peeking",
    "profiles",
    "replay",
    "replication",
    "stacks",
    "state",
    "tables",
    "unions",
    "value_sets",
    "varbits",
)
REFUSED = tuple(sorted(path.stem for path in (PROGRAMS / "refused").glob("*.p4")))


def config(name: str) -> bytes:
    return (PROGRAMS / f"{name}.json").read_bytes()


def load(name: str) -> Pipeline:
    return Pipeline(config(name))
