# SPDX-License-Identifier: Apache-2.0
"""Fail on a commit subject of over 72 characters: `git log --oneline` and pages cut longer ones.

With a file it checks the message in it (pre-commit's commit-msg hook), else the commits since the
check exists.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LONGEST = 72
# Older subjects stay as they are, because records of benchmarks cite their commits.
FIRST = "6d5696ee83e78ae70825e8e66469ffd611c5da94"


def subjects() -> list[str]:
    """Return the subjects since FIRST, or none without git or with a shallow clone."""
    found = subprocess.run(
        ["git", "log", "--no-merges", "--format=%s", f"{FIRST}.."],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.splitlines()


def main() -> int:
    asked = [Path(name).read_text().partition("\n")[0] for name in sys.argv[1:]]
    long = [subject for subject in asked or subjects() if len(subject) > LONGEST]
    for subject in long:
        print(f"commit subject of {len(subject)} characters, {LONGEST} are allowed: {subject}")
    return bool(long)


if __name__ == "__main__":
    raise SystemExit(main())
