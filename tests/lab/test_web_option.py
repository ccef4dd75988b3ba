# SPDX-License-Identifier: Apache-2.0
"""`--web`: a port that is free, and a page that is there."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.request
from pathlib import Path

import pytest
from launched import DEADLINE, Launched
from p4reduce_lab import live_page
from p4reduce_lab.errors import LabError


def test_a_port_that_is_taken_is_passed_over() -> None:
    with socket.create_server((live_page.HOST, 0)) as taken:
        used = taken.getsockname()[1]
        with pytest.raises(LabError, match=f"no port is free.*all of {used} to {used} are taken"):
            live_page.free_address(range(used, used + 1))
        assert live_page.free_address(range(used, used + 20)) != f"{live_page.HOST}:{used}"


def test_no_browser_is_opened_where_there_is_no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(live_page.webbrowser, "open", opened.append)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(live_page.sys, "platform", "linux")
    assert live_page.show("127.0.0.1:8080") == "Live page: http://127.0.0.1:8080/"
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    live_page.show("127.0.0.1:8080")
    assert opened == ["http://127.0.0.1:8080/"]


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_up_shows_the_page_of_all_switches(tmp_path: Path) -> None:
    up = Launched(tmp_path, "up", "--ports", "2", "--switches", "2", "--web")
    up.wait_for("Ctrl-C ends it")
    [page] = re.findall(r"Live page: (\S+)", up.output)
    with urllib.request.urlopen(f"{page}view.json", timeout=DEADLINE) as answer:
        switches = json.load(answer)["switches"]
    assert [switch["name"] for switch in switches] == ["a", "b"]
    assert all(switch["connected"] for switch in switches)
    up.process.send_signal(signal.SIGINT)
    assert up.wait() == 130
