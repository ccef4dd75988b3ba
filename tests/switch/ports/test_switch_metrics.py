# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-switch --metrics-port`: what Prometheus reads, and what others get."""

from __future__ import annotations

import errno
import http.client
import json
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

DEADLINE = 120.0

pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
from p4reduce_switch.process.metrics import SwitchCollector, serving_metrics  # noqa: E402


def test_a_thread_that_fails_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def fail(server: socketserver.BaseServer) -> None:
        failed.set()
        raise ValueError("odd")

    with serving_metrics(0, SwitchCollector(dict)) as port:
        monkeypatch.setattr(socketserver.BaseServer, "service_actions", fail)
        assert failed.wait(DEADLINE)
        end = time.monotonic() + DEADLINE
        refusal = 0
        while refusal != errno.ECONNREFUSED:
            assert time.monotonic() < end, refusal
            with socket.socket() as asking:
                refusal = asking.connect_ex(("127.0.0.1", port))


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """A switch with one port, its metrics' port and the directory."""
    command = [sys.executable, "-m", "p4reduce_switch", "--grpc-addr", "127.0.0.1:0"]
    command += ["--port", f"3=unix:{tmp_path}/port3", "--metrics-port", "0"]
    command += ["--log-format", "json", "--ready-fd"]
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [*command, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    theirs.close()
    ours.settimeout(DEADLINE)
    with ours, ours.makefile() as said:
        port = json.loads(said.readline())["metrics_port"]
    yield process, port, tmp_path
    if process.poll() is None:
        process.terminate()
    process.communicate(timeout=DEADLINE)


def get(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_frames_are_counted(switch: Any) -> None:
    _, port, directory = switch
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(DEADLINE)
        peer.connect(str(directory / "port3"))
        for _ in range(5):
            peer.send(bytes(64))
        while 'p4reduce_dataplane_port_rx_frames_total{port="3"} 5.0' not in get(port)[1]:
            pass
    text = get(port)[1]
    assert 'p4reduce_dataplane_port_rx_bytes_total{port="3"} 320.0' in text
    assert "p4reduce_dataplane_no_pipeline_total 5.0" in text
    if promtool := shutil.which("promtool"):
        subprocess.run([promtool, "check", "metrics"], input=text, text=True, check=True)


def test_strangers_get_nothing(switch: Any) -> None:
    _, port, _ = switch
    assert get(port, Host="attacker.example")[0] == 421
    assert get(port, "/secret")[0] == 404
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as connection:
        connection.sendall(b"\x00\xff" * 100 + b"\r\n\r\n")
        assert b"400" in connection.recv(4096)
    assert get(port)[0] == 200


def test_logs_are_json(switch: Any) -> None:
    process, _, _ = switch
    process.terminate()
    _, errors = process.communicate(timeout=DEADLINE)
    for line in errors.splitlines():
        assert json.loads(line).keys() >= {"time", "level", "logger", "message"}


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "p4reduce_switch", "--grpc-addr", "127.0.0.1:0"]
        done = subprocess.run(
            [*command, "--metrics-port", port], capture_output=True, text=True, timeout=DEADLINE
        )
    assert done.returncode == 1
    assert f"--metrics-port {port}: Address already in use" in done.stderr
