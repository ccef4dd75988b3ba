# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest
from p4reduce.control.controller_address import default_address, parse_address
from p4reduce.errors import ConfigurationError
from p4reduce_switch.p4runtime.listen_address import parse_grpc_address

OWN = f"unix:/tmp/p4reduce-{os.getuid()}/controller.sock"


@pytest.fixture(autouse=True)
def no_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("P4REDUCE_CONTROLLER", raising=False)


def test_the_default_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert default_address() == OWN
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_address() == f"unix:{tmp_path}/p4reduce/controller.sock"
    monkeypatch.setenv("P4REDUCE_CONTROLLER", "127.0.0.1:5")
    assert default_address() == "127.0.0.1:5"


@pytest.mark.parametrize("kind", ["missing", "relative", "a file", "another user's", "read-only"])
def test_a_runtime_directory_of_no_use(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    """As after su, in a container, or where nobody has logged in."""
    directory, why = tmp_path / "run", "No such file"
    if kind == "relative":
        directory, why = Path("run"), "not an absolute path"
    elif kind == "a file":
        directory.touch()
        why = "not a directory"
    elif kind == "another user's":
        directory.mkdir()
        monkeypatch.setattr(os, "getuid", lambda: 4_000_123)
        why = "and this is user 4000123"
    elif kind == "read-only":
        directory.mkdir(mode=0o500)
        if os.access(directory, os.W_OK):
            pytest.skip("root may write everywhere")
        why = "cannot be written to"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    own = f"/tmp/p4reduce-{os.getuid()}"
    for _ in range(2):
        assert default_address() == f"unix:{own}/controller.sock"
    [warning] = caplog.messages
    assert warning.startswith(f"XDG_RUNTIME_DIR={directory} ")
    assert why in warning
    assert own in warning


def test_a_directory_that_somebody_else_has_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner would be this user's controller."""
    uid = os.getpid() + 10_000_000
    squatted = Path("/tmp", f"p4reduce-{uid}")
    squatted.mkdir()
    try:
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setattr(os, "getuid", lambda: uid)
        with pytest.raises(ConfigurationError, match="another user's, and XDG_RUNTIME_DIR is not"):
            default_address()
    finally:
        squatted.rmdir()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("unix:/run/x.sock", None),
        ("unix:///run/x.sock", None),
        ("127.0.0.1:9559", ("127.0.0.1", 9559)),
        ("[::1]:0", ("::1", 0)),
        ("node-3.example:65535", ("node-3.example", 65535)),
    ],
)
def test_addresses(text: str, place: tuple[str, int] | None) -> None:
    assert parse_address(text) == place


@pytest.mark.parametrize("text", ["", "foo", ":1", "unix:", "a:", "a:x", "a:65536", "::1:5"])
def test_what_is_no_address_is_told_as_the_switch_tells_it(text: str) -> None:
    told = []
    for parse in (parse_address, parse_grpc_address):
        with pytest.raises(ValueError, match=r"HOST:PORT|path|port|brackets") as error:
            parse(text)
        told.append(str(error.value))
    assert told[0] == told[1]
