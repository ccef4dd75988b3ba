# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

import pytest
from p4reduce.control.address import default_address


def test_the_default_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("P4REDUCE_CONTROLLER", raising=False)
    assert default_address() == f"unix:/tmp/p4reduce-{os.getuid()}/controller.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_address() == "unix:/run/user/7/p4reduce/controller.sock"
    monkeypatch.setenv("P4REDUCE_CONTROLLER", "127.0.0.1:5")
    assert default_address() == "127.0.0.1:5"
