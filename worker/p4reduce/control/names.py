# SPDX-License-Identifier: Apache-2.0
"""The rules for names of jobs and switches, shared by ranks and the controller."""

from __future__ import annotations

MAX_NAME = 100
ROOM_FOR_PARTS = 16
"""Characters that the names of a job's parts on several switches take beyond its own."""
JOB_NAME = f"1 to {MAX_NAME} printable characters, no space at either end"

SWITCH_NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}"
"""The regular expression of a switch's name."""


def is_job_name(name: str) -> bool:
    """Whether it is a valid job name: `JOB_NAME`."""
    return 0 < len(name) <= MAX_NAME and name.isprintable() and name == name.strip()
