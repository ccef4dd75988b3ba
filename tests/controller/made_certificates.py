# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, by tools/make-certificates."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from p4reduce.control.tls import TlsFiles

_MAKE = Path(__file__).parents[2] / "tools" / "make-certificates"

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed"
)


def make(directory: Path, *names: str, days: int = 30) -> None:
    """Make a CA where there is none, and certificates, such as "server=127.0.0.1"."""
    environ = {**os.environ, "DAYS": str(days)}
    subprocess.run([_MAKE, directory, *names], env=environ, check=True, capture_output=True)


def files(directory: Path, name: str) -> TlsFiles:
    """Where a certificate is, and its key and CA."""
    return TlsFiles(directory / f"{name}.pem", directory / f"{name}.key", directory / "ca.pem")
