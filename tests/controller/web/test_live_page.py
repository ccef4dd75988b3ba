# SPDX-License-Identifier: Apache-2.0
"""The live page of a real controller: what it shows, and what strangers get."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from controller_harness import (
    DEADLINE,
    RunningController,
    SwitchProcess,
    contribute,
    eventually,
)
from p4reduce_controller.service.listen import ListenError
from p4reduce_controller.settings import Http
from p4reduce_controller.web import deadlines
from p4reduce_controller.web import server as page_server

Start = Callable[..., RunningController]


@pytest.fixture
def shown(start: Start, switch: SwitchProcess) -> RunningController:
    """A controller with a live page."""
    return start(switch, http=Http("127.0.0.1:0"))


def test_the_log_names_the_page(
    start: Start, switch: SwitchProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """An IPv6 address is in brackets there, as a browser needs it."""
    caplog.set_level("INFO")
    with contextlib.suppress(ListenError):  # this machine has no IPv6
        page = start(switch, http=Http("[::1]:0")).daemon.page
        assert page is not None
        assert f"live page at http://[::1]:{page[1]}/" in caplog.text


def place(controller: RunningController) -> tuple[str, int]:
    """Host and port of the page."""
    assert controller.daemon.page is not None
    return controller.daemon.page


def get(
    controller: RunningController, path: str, method: str = "GET", **headers: str
) -> tuple[int, str]:
    """One request; returns status and body."""
    connection = http.client.HTTPConnection(*place(controller), timeout=DEADLINE)
    with contextlib.closing(connection):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def view(controller: RunningController) -> dict[str, Any]:
    """What the page would show now."""
    status, body = get(controller, "/view.json")
    assert status == 200
    shown: dict[str, Any] = json.loads(body)
    return shown


def test_a_running_job(shown: RunningController, switch: SwitchProcess) -> None:
    shown.running(switch, 3, slots=4)
    seen = view(shown)
    [at] = seen["switches"]
    assert (at["connected"], at["slots"], at["free"]) == (True, 1024, 1020)
    [job] = seen["jobs"]
    assert (job["name"], job["state"], job["world_size"]) == ("train", "running", 3)
    assert [(rank["rank"], rank["state"]) for rank in job["ranks"]] == [
        (0, "attached"),
        (1, "attached"),
        (2, "attached"),
    ]
    assert [slots["marks"] for slots in job["slots"]] == ["...."]
    assert job["waits_for"] == ""


def test_a_stuck_job_says_for_whom_it_waits(
    shown: RunningController, switch: SwitchProcess
) -> None:
    ranks = shown.running(switch, 3, slots=4)
    for rank in ranks[:2]:
        contribute(rank, 5)

    def stuck() -> str:
        [job] = view(shown)["jobs"]
        return str(job["waits_for"])

    said = eventually(stuck, "the page says what it waits for")
    assert re.match(r"Has waited \d+ s for rank 2, in 1 slot\. ", said)
    [job] = view(shown)["jobs"]
    [slots] = job["slots"]
    assert slots["marks"] == "r..."  # open at the look before as well
    assert slots["waiting"] == [{"slots": [0], "heard": 2, "missing": [2]}]
    contribute(ranks[2], 5)
    eventually(lambda: not stuck(), "nothing is waited for")
    assert view(shown)["jobs"][0]["slots"][0]["marks"] == "d..."


def test_readers_do_not_change_what_the_page_shows(
    shown: RunningController, switch: SwitchProcess
) -> None:
    """Scrapes and single views between the page's samples reset no clock and add no point."""
    ranks = shown.running(switch, 3, slots=4)
    for rank in ranks[:2]:
        contribute(rank, 5)
    waited, points = 0, 0
    with stream(shown) as lines:
        while waited < 4:
            for path in ("/metrics", "/view.json", "/metrics"):
                assert get(shown, path)[0] == 200
            [job] = next_view(lines)["jobs"] or [None]
            if job is None or not job["waits_for"]:
                assert waited == 0, "the clock of the stall was set back"
                continue
            assert [each["marks"] for each in job["slots"]] == ["r..."]
            found = re.match(r"Has waited (\d+) s for rank 2", job["waits_for"])
            assert found
            assert int(found[1]) >= waited
            assert len(job["history"]) <= points + 1 or not points
            waited, points = int(found[1]), len(job["history"])


def test_a_forming_job_names_who_is_missing(
    shown: RunningController, switch: SwitchProcess
) -> None:
    shown.rank(switch, 0, 3)
    [job] = view(shown)["jobs"]
    assert "ranks 1-2 have not joined" in job["waits_for"]
    assert "its HELLO has not come through the switch" in job["waits_for"]


def test_a_job_that_has_ended_says_why(shown: RunningController, switch: SwitchProcess) -> None:
    shown.running(switch, 2)
    shown.call("DeleteJob", name="train")
    [job] = view(shown)["jobs"]
    assert (job["state"], job["reason"]) == ("ended", "deleted by an operator")
    assert job["waits_for"] == ""


@contextlib.contextmanager
def stream(controller: RunningController) -> Iterator[Any]:
    """The page's stream of views, as a file."""
    with socket.create_connection(place(controller), timeout=DEADLINE) as connection:
        connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with connection.makefile("rb") as lines:
            yield lines


def next_view(lines: Any) -> dict[str, Any]:
    """The next view of a stream."""
    for line in lines:
        if line.startswith(b"data: "):
            read: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            return read
    raise AssertionError("the stream has ended")


def test_the_stream_goes_on(shown: RunningController, switch: SwitchProcess) -> None:
    with stream(shown) as lines:
        first = next_view(lines)
        shown.running(switch, 2)
        while not next_view(lines)["jobs"]:
            pass
        assert next_view(lines)["time"] > first["time"]


def test_a_browser_that_stops_reading_holds_nobody_up(
    shown: RunningController, switch: SwitchProcess
) -> None:
    shown.running(switch, 4, slots=1024)
    with contextlib.ExitStack() as idle:
        for _ in range(30):
            idle.enter_context(stream(shown))  # and never reads
        with stream(shown) as lines:
            while not next_view(lines)["jobs"]:
                pass
            for _ in range(3):
                assert next_view(lines)["jobs"]


def test_the_end_of_the_controller_ends_the_stream(start: Start, switch: SwitchProcess) -> None:
    controller = start(switch, http=Http("127.0.0.1:0"))
    with stream(controller) as lines:
        next_view(lines)
        controller.stop()
        assert lines.read() is not None


# -- Strangers -----------------------------------------------------------------------------


def test_another_host_is_refused(shown: RunningController) -> None:
    status, body = get(shown, "/view.json", Host="attacker.example")
    assert status == 421
    assert "attacker.example" in body
    assert "switches" not in body


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST:8080"])
def test_own_names_are_taken(shown: RunningController, name: str) -> None:
    assert get(shown, "/view.json", Host=name)[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_is_refused(shown: RunningController, site: str) -> None:
    assert get(shown, "/view.json", Sec_Fetch_Site=site)[0] == 403
    assert get(shown, "/events", Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate")[0] == 403
    # A link to the page is no harm.
    assert get(shown, "/", Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(shown: RunningController, method: str) -> None:
    assert get(shown, "/view.json", method)[0] == 405


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/..", "/secret"],
)
def test_no_other_file_is_shown(shown: RunningController, path: str) -> None:
    assert get(shown, path)[0] in (400, 404)


def test_answers_forbid_what_the_page_does_not_need(shown: RunningController) -> None:
    connection = http.client.HTTPConnection(*place(shown), timeout=DEADLINE)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert "default-src 'self'" in (answer.getheader("Content-Security-Policy") or "")
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("Access-Control-Allow-Origin") is None
        assert b"http://" not in answer.read()  # nothing comes from elsewhere


def test_malformed_requests_end_nothing(shown: RunningController) -> None:
    for _ in range(300):
        junk = bytes(random.randrange(256) for _ in range(random.randrange(1, 400)))
        head = random.choice([b"", b"GET / HTTP/1.1\r\n", b"GET /" + junk[:20] + b" HTTP/1.1\r\n"])
        connection = socket.create_connection(place(shown), timeout=DEADLINE)
        with connection, contextlib.suppress(ConnectionError):
            connection.sendall(head + junk + b"\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
    assert get(shown, "/view.json")[0] == 200


def test_a_request_that_does_not_come_is_not_waited_for(
    shown: RunningController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "REQUEST_WITHIN", 0.2)
    for begun in (b"", b"GET / HTTP/1.1\r\nHost: loc"):
        with socket.create_connection(place(shown), timeout=DEADLINE) as connection:
            connection.sendall(begun)
            assert connection.recv(1024) == b""
    assert get(shown, "/view.json")[0] == 200


def test_the_end_of_an_answer_does_not_cut_the_next_one(
    shown: RunningController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two requests at once, the stream begins before the page's file is closed."""
    monkeypatch.setattr(deadlines, "REQUEST_WITHIN", 0.2)
    requests = [
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in ("/", "/events")
    ]
    with socket.create_connection(place(shown), timeout=DEADLINE) as connection:
        connection.sendall(b"".join(requests))
        answers = b""
        while answers.count(b"data: ") < 3:
            more = connection.recv(1 << 16)
            assert more, "hung up on"
            answers += more


# -- Where it may be -------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "sixteen characters"])
def test_beyond_loopback_it_needs_tls_and_a_token(token: str) -> None:
    with pytest.raises(ListenError, match="without TLS and a token"):
        page_server.bind(Http("0.0.0.0:0", None, token))


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot serve the page at 127.0.0.1:{port}: Addr"):
            page_server.bind(Http(f"127.0.0.1:{port}"))


def test_the_page_itself(shown: RunningController) -> None:
    static = Path(page_server.__file__).parent / "static"
    for name in ("page.js", "page.css", "uPlot.iife.min.js", "uPlot.min.css", "icon.svg"):
        status, body = get(shown, f"/static/{name}")
        assert (status, body) == (200, (static / name).read_text())
    assert "static/page.js" in get(shown, "/")[1]
