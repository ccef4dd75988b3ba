# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

import pytest
from p4reduce.control.controller_address import default_address, parse_address
from p4reduce_switch.p4runtime.listen_address import parse_grpc_address


def test_the_default_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("P4REDUCE_CONTROLLER", raising=False)
    assert default_address() == f"unix:/tmp/p4reduce-{os.getuid()}/controller.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_address() == "unix:/run/user/7/p4reduce/controller.sock"
    monkeypatch.setenv("P4REDUCE_CONTROLLER", "127.0.0.1:5")
    assert default_address() == "127.0.0.1:5"


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
