# SPDX-License-Identifier: Apache-2.0
"""The secrets of a network: a token and a key. `certificates` makes those for several hosts."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def make_token() -> str:
    """Return a job's token."""
    return secrets.token_urlsafe(24)


def make_key(directory: Path) -> tuple[Path, str]:
    """Make a key for UDP ports; return its file and its text."""
    key, file = secrets.token_urlsafe(32), directory / "udp.key"
    write_private(file, key)
    return file, key


def write_private(file: Path, text: str) -> None:
    """Write a new file that only this user can read."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(text)
