# SPDX-License-Identifier: Apache-2.0
"""Hostile input to the live page: malformed requests, strangers, slow clients, idle browsers."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from controller_harness import (
    DEADLINE,
    RunningController,
    SwitchProcess,
    contribute,
    eventually,
    result,
)
from p4reduce_controller.settings import Http
from p4reduce_controller.web import deadlines
from p4reduce_controller.web import monitor as page_monitor
from test_live_page import get, next_view, place, stream, view

Start = Callable[..., RunningController]

SEED = int(os.environ.get("SEED", "34"))
MALFORMED = 10_000
BROWSERS = 50
_ESTABLISHED = 1  # TCP's state, in <netinet/tcp.h>
SECRET = b"train"  # the job's name, which no stranger may see


@pytest.fixture
def shown(start: Start, switch: SwitchProcess) -> RunningController:
    """A controller with a live page, and a job."""
    controller = start(switch, http=Http("127.0.0.1:0"))
    controller.running(switch, 2, slots=4)
    return controller


# -- Malformed requests ----------------------------------------------------------------------

# fmt: off
_METHODS = (
    b"GET", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"CONNECT", b"HEAD", b"PRI",
    b"get", b"G\x00T", b"",
)
_PATHS = (
    b"/", b"/view.json", b"/events", b"/metrics", b"/static/page.js", b"//", b"*", b"/\xff\xfe",
    b"/static/..%2f..%2fapp.py", b"/static/%2e%2e/%2e%2e/%2e%2e/etc/passwd", b"/%", b"/%zz", b"\\",
    b"http://attacker.example/view.json", b"/" + b"a" * 70_000, b"",
)
_VERSIONS = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b"HTTP/1.1.1", b"ICY", b"")
_HOSTS = (
    b"attacker.example", b"localhost.attacker.example", b"127.0.0.1.attacker.example", b"",
    b"[::1", b"a" * 5000, b"localhost\x00", b"127.0.0.1@attacker.example", b"169.254.169.254",
    b"0.0.0.0", b"127.1", b"2130706433",
)
_FIELDS = (
    b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Expect: 100-continue",
    b"Upgrade: websocket", b"Connection: Upgrade", b"Range: bytes=0-,-1,5-2", b"no colon",
    b"Cookie: p4reduce=\x01;;=", b"Authorization: Bearer \xff", b"Sec-Fetch-Site: cross-site",
    b"Origin: http://attacker.example", b" folded: 1", b": no name", b"X: " + b"b" * 9000,
    b"\x00: \x00", b"If-Modified-Since: never",
)
# fmt: on


def malformed(rng: random.Random) -> bytes:
    """A request that is wrong somewhere; none names this server as its only Host."""
    line = b" ".join((rng.choice(_METHODS), rng.choice(_PATHS), rng.choice(_VERSIONS)))
    head = [line, b"Host: " + rng.choice(_HOSTS)]
    head += rng.choices(_FIELDS, k=rng.randrange(4))
    rng.shuffle(head)
    request = bytearray(rng.choice((b"\r\n", b"\n", b"\r")).join(head) + b"\r\n\r\n")
    request += rng.randbytes(rng.choice((0, 0, 5, 400)))
    for _ in range(rng.choice((0, 0, 1, 8))):  # bytes that are other ones
        request[rng.randrange(len(request))] = rng.randrange(256)
    if rng.random() < 0.2:
        request = request[: rng.randrange(1, len(request) + 1)]
    return bytes(request) if rng.random() < 0.9 else rng.randbytes(rng.randrange(1, 2000))


def answer_to(controller: RunningController, request: bytes) -> bytes:
    """Send bytes and no more; returns whatever comes back until the server hangs up."""
    connection = socket.create_connection(place(controller), timeout=DEADLINE)
    answer = b""
    with connection, contextlib.suppress(ConnectionError):
        connection.sendall(request)
        with contextlib.suppress(OSError):  # ENOTCONN: the page has reset it already
            connection.shutdown(socket.SHUT_WR)
        while len(answer) < 1 << 16 and (more := connection.recv(65536)):
            answer += more
    return answer


@pytest.mark.long
def test_ten_thousand_malformed_requests(shown: RunningController, switch: SwitchProcess) -> None:
    """Nothing crashes, nothing is shown, and the job continues."""
    print(f"SEED={SEED}")
    rng = random.Random(SEED)
    before = view(shown)
    for number in range(MALFORMED):
        request = malformed(rng)
        answer = answer_to(shown, request)
        assert SECRET not in answer, (number, request, answer)
        assert b"Traceback" not in answer, (number, request, answer)
        if answer:
            assert answer.startswith(b"HTTP/1.1 "), (number, request, answer[:200])
    after = view(shown)
    assert [(job["name"], job["state"]) for job in after["jobs"]] == [
        (job["name"], job["state"]) for job in before["jobs"]
    ]
    assert after["switches"][0]["free"] == before["switches"][0]["free"]


# -- Strangers ---------------------------------------------------------------------------------


PATHS = ("/", "/view.json", "/events", "/metrics", "/static/page.js")
STRANGERS = (
    {"Host": "attacker.example"},  # DNS rebinding
    {"Host": "127.0.0.1.attacker.example"},
    {"Host": "localhost.attacker.example:8080"},
    {"Host": ""},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
)


def test_strangers_see_nothing(shown: RunningController) -> None:
    for path, headers in itertools.product(PATHS, STRANGERS):
        given = {name.replace("-", "_"): text for name, text in headers.items()}
        status, body = get(shown, path, **given)
        assert status in (403, 421), (path, headers, body)
        assert "train" not in body, (path, headers)


def test_another_origin_cannot_read_an_answer(shown: RunningController) -> None:
    """Browsers that do not tell the site of a request still need leave to show the answer."""
    for path in ("/view.json", "/events", "/metrics"):
        request = (
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://attacker.example\r\n\r\n"
        )
        with socket.create_connection(place(shown), timeout=DEADLINE) as connection:
            connection.sendall(request.encode())
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(4096)
        assert b"access-control-allow" not in head.lower()
        assert b"cross-origin-resource-policy: same-origin" in head.lower()


METHODS = ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "X")


def test_no_method_changes_anything(shown: RunningController) -> None:
    for path, method in itertools.product(PATHS, METHODS):
        request = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}"
        answer = answer_to(shown, request.encode())
        assert answer.startswith((b"HTTP/1.1 405", b"HTTP/1.1 400")), (path, method, answer)
    assert [job["state"] for job in view(shown)["jobs"]] == ["running"]


# -- Slow clients ------------------------------------------------------------------------------


def test_a_hundred_slow_clients_are_hung_up_on(
    shown: RunningController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then keeps no connection (slowloris), and meanwhile others are served."""
    monkeypatch.setattr(deadlines, "REQUEST_WITHIN", 1.0)
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(place(shown), timeout=DEADLINE))
            for _ in range(100)
        ]
        left = set(slow)
        head = iter(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 10_000)
        end = time.monotonic() + DEADLINE
        while left:
            assert time.monotonic() < end, f"{len(left)} are still connected"
            byte = bytes([next(head)])
            left = {connection for connection in left if still_there(connection, byte)}
            assert get(shown, "/view.json")[0] == 200
            time.sleep(0.05)


def still_there(connection: socket.socket, byte: bytes) -> bool:
    """Send a byte; returns whether the server has not hung up."""
    connection.setblocking(False)
    try:
        connection.send(byte)
        return connection.recv(4096) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


# -- Many browsers -----------------------------------------------------------------------------


@contextlib.contextmanager
def browsers(controller: RunningController, number: int) -> Iterator[list[dict[str, Any]]]:
    """So many that watch; yields the newest view of each."""
    newest: list[dict[str, Any]] = [{} for _ in range(number)]
    ended = threading.Event()

    def watch(at: int, lines: Any) -> None:
        with contextlib.suppress(AssertionError, OSError, ValueError):
            while not ended.is_set():
                newest[at] = next_view(lines)

    with contextlib.ExitStack() as stack:
        threads = []
        for at in range(number):
            lines = stack.enter_context(stream(controller))
            threads.append(threading.Thread(target=watch, args=(at, lines), daemon=True))
            threads[-1].start()
        yield newest
        ended.set()  # the next view, a second later at most, is each thread's last
        for thread in threads:
            thread.join(DEADLINE)


def test_fifty_browsers_see_the_same(start: Start, switch: SwitchProcess) -> None:
    """All of them follow a sum, which is not held up: the frames of it pass meanwhile."""
    shown = start(switch, http=Http("127.0.0.1:0"))
    ranks = shown.running(switch, 2, slots=4)
    with browsers(shown, BROWSERS) as newest:
        eventually(lambda: all(one.get("jobs") for one in newest), "all see the job")
        for rank in ranks:
            contribute(rank, 5)
        for rank in ranks:
            result(rank)

        def done() -> bool:
            return all(one["jobs"][0]["slots"][0]["marks"] == "d..." for one in newest)

        eventually(done, "all see that the slot is complete")


@pytest.mark.long
def test_a_browser_that_stops_reading_is_dropped(
    start: Start,
    switch: SwitchProcess,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Within STOPPED_READING of the moment when nothing more fits; the log does not mind."""
    monkeypatch.setattr(deadlines, "STOPPED_READING", 0.5)
    # So that no more fits soon.
    monkeypatch.setattr(deadlines, "SEND_BUFFER", 4096)
    monkeypatch.setattr(page_monitor, "WATCHED_INTERVAL", 0.02)
    shown = start(switch, http=Http("127.0.0.1:0"))
    shown.running(switch, 4, slots=1024)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(DEADLINE)
        connection.connect(place(shown))
        connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually(lambda: gone(connection), "it is hung up on")
    assert json.loads(get(shown, "/view.json")[1])["jobs"]
    assert "Traceback" not in caplog.text


def test_what_is_left_of_an_answer_is_not_kept_for_ever(
    start: Start, switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client asks and reads nothing, and less is left than the transport may keep."""
    monkeypatch.setattr(deadlines, "REQUEST_WITHIN", 0.5)
    monkeypatch.setattr(deadlines, "STOPPED_READING", 0.5)
    monkeypatch.setattr(deadlines, "SEND_BUFFER", 4096)
    shown = start(switch, http=Http("127.0.0.1:0"))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(place(shown))
        connection.sendall(b"GET /static/uPlot.iife.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually(lambda: gone(connection), "it is hung up on")


def gone(connection: socket.socket) -> bool:
    """Whether the other end has closed or reset it, by the kernel, without reading a byte."""
    (state,) = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return state != _ESTABLISHED
