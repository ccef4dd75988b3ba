# SPDX-License-Identifier: Apache-2.0
"""The rule for job names, shared by ranks and the controller."""

from __future__ import annotations

MAX_NAME = 100
ROOM_FOR_PARTS = 16
"""Characters that the names of a job's parts on several switches take beyond its own."""
JOB_NAME = f"1 to {MAX_NAME} printable characters, no space at either end"


def is_job_name(name: str) -> bool:
    """Whether it is a valid job name: `JOB_NAME`."""
    return 0 < len(name) <= MAX_NAME and name.isprintable() and name == name.strip()
