# SPDX-License-Identifier: Apache-2.0
"""Files that are named to a command: what is none is refused, and never waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from p4reduce_native.files import read_file, read_text
from p4reduce_native.udp_handshake import read_key


def no_file(kind: str, directory: Path) -> Path:
    path = directory / "named"
    if kind == "a FIFO":
        os.mkfifo(path, 0o600)
    elif kind == "a directory":
        path.mkdir(mode=0o700)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    else:
        return Path("/dev/null")
    return path


@pytest.mark.parametrize("kind", ["a FIFO", "a directory", "a socket", "a device"])
def test_what_is_no_file_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    path = no_file(kind, tmp_path)
    with pytest.raises(OSError, match=f"it is {kind}, and a file is needed: '{path}'"):
        read_file(path)
    with pytest.raises(ValueError, match=f"key file {path}: it is {kind}, and a file is needed"):
        read_key(path)


def test_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    assert read_file(path) == (b"0123456789abcdef\n", 0o100600)
    assert read_file(path, 4)[0] == b"0123"
    assert read_text(path) == "0123456789abcdef\n"
    assert read_key(path) == b"0123456789abcdef"
    (tmp_path / "link").symlink_to(path)
    assert read_key(tmp_path / "link") == b"0123456789abcdef"
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "nothing")
