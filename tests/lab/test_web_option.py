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
            live_page.free_address(0, range(used, used + 1))
        ports = range(used, used + 20 * live_page.CONTROLLERS)
        assert live_page.free_address(0, ports) != f"{live_page.HOST}:{used}"


def test_controllers_that_start_together_get_different_ports() -> None:
    given = {live_page.free_address(number) for number in range(live_page.CONTROLLERS)}
    assert len(given) == live_page.CONTROLLERS


def test_no_browser_is_opened_where_there_is_no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(live_page.webbrowser, "open", opened.append)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(live_page.sys, "platform", "linux")
    assert live_page.show(["127.0.0.1:8080"]) == ["Live page: http://127.0.0.1:8080/"]
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    live_page.show(["127.0.0.1:8080"])
    assert opened == ["http://127.0.0.1:8080/"]


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_up_shows_the_page_of_each_controller(tmp_path: Path) -> None:
    up = Launched(tmp_path, "up", "--ports", "2", "--switches", "2", "--web")
    up.wait_for("Ctrl-C ends it")
    pages = re.findall(r"Live page: (\S+)", up.output)
    assert len(set(pages)) == 2
    for page in pages:
        with urllib.request.urlopen(f"{page}view.json", timeout=DEADLINE) as answer:
            [switch] = json.load(answer)["switches"]
        assert switch["connected"]
    up.process.send_signal(signal.SIGINT)
    assert up.wait() == 130
