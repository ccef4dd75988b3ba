# SPDX-License-Identifier: Apache-2.0
"""Keys and certificates that stand in a variable themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from p4reduce import ConfigurationError, variables
from p4reduce.control.pem import in_a_file
from p4reduce.transport import udp

PEM = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"


def test_a_path_stays_a_path() -> None:
    assert in_a_file("/etc/worker.pem") == "/etc/worker.pem"
    assert in_a_file(None) is None
    assert in_a_file("") == ""


def test_text_is_in_a_file_of_this_user_alone() -> None:
    name = in_a_file(PEM)
    assert name is not None
    file = Path(name)
    assert file.read_text() == PEM
    assert file.read_text() == PEM  # from the beginning again
    assert file.stat().st_mode & 0o777 == 0o600
    assert in_a_file(PEM) == name  # once for each text
    assert in_a_file(PEM + "\n") != name


@pytest.mark.parametrize("before", ["\n", "Bag Attributes\n    friendlyName: worker\n"])
def test_text_before_a_key_makes_no_path_of_it(before: str) -> None:
    """A message about that path would show the key."""
    name = in_a_file(before + PEM)
    assert name is not None
    assert Path(name).read_text() == before + PEM


def test_no_key_is_left_on_the_disk(tmp_path: Path) -> None:
    """A rank that is killed, or that multiprocessing started, runs nothing at its exit."""
    program = f"""
import os
from p4reduce.control.pem import in_a_file
file = in_a_file({PEM!r})
if not (child := os.fork()):
    os._exit(open(file).read() != {PEM!r})
assert os.waitpid(child, 0)[1] == 0, "a forked child reads it too"
os._exit(0)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, timeout=100, check=True)
    assert not list(tmp_path.iterdir())


def test_elsewhere_the_file_goes_with_the_process(tmp_path: Path) -> None:
    program = f"""
import sys
sys.platform = "darwin"
from pathlib import Path
from p4reduce.control.pem import in_a_file
file = Path(in_a_file({PEM!r}))
assert file.read_text() == {PEM!r}
assert file.stat().st_mode & 0o777 == 0o600
assert file.parent.stat().st_mode & 0o777 == 0o700
print(file)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=True
    )
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_key_as_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(variables.UDP_KEY_FILE, raising=False)
    monkeypatch.setenv(variables.UDP_KEY, "0123456789abcdef")
    assert udp.own_key() == b"0123456789abcdef"
    monkeypatch.setenv(variables.UDP_KEY, "short")
    with pytest.raises(ConfigurationError, match=r"P4REDUCE_UDP_KEY: a key of 5 bytes; .* 16 to"):
        udp.own_key()
    file = tmp_path / "key"
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as opened:
        opened.write("0123456789abcdef")
    monkeypatch.setenv(variables.UDP_KEY_FILE, str(file))
    with pytest.raises(ConfigurationError, match="unset one of them"):
        udp.own_key()
