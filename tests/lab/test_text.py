# SPDX-License-Identifier: Apache-2.0
"""What commands print on a terminal of 80 columns."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

TEXT = "a sentence of words that is longer than a line of the terminal is wide, by some words more"


def printed(script: str, columns: int) -> list[str]:
    """The lines that a Python script prints on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": str(columns)},
    )
    os.close(theirs)
    text = b""
    try:
        while read := os.read(ours, 65536):
            text += read
    except OSError:  # EIO: the other end is closed
        pass
    finally:
        os.close(ours)
        process.wait(240)
    return text.decode().splitlines()


def test_no_word_is_broken_at_the_edge() -> None:
    lines = printed(f"from p4reduce_lab.text import wrapped; print(wrapped({TEXT!r}, 4))", 50)
    assert len(lines) > 1
    assert all(len(line) <= 50 for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])
    assert " ".join(line.strip() for line in lines) == TEXT


def test_a_pipe_gets_the_line_as_it_is() -> None:
    script = f"from p4reduce_lab.text import wrapped; print(wrapped({TEXT!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout == TEXT + "\n"
