# SPDX-License-Identifier: Apache-2.0
"""A switch that is starting: files that are none, and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from p4reduce_switch.process import run as process

SECONDS = 120.0
P4INFO = str(Path(__file__).parents[3] / "p4src" / "compiled" / "p4reduce.p4info.txtpb")

# A start that takes long, in the middle of which a signal comes.
SLOW = """
import os, signal, sys, time
from p4reduce_switch.cli import main
from p4reduce_switch.process import run

def slow(*arguments):
    os.kill(os.getpid(), number)
    time.sleep(600)

where, number = sys.argv.pop(1), int(sys.argv.pop(1))
setattr(run, where, slow)
main()
"""


def switch(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "p4reduce_switch", "--grpc-addr", "127.0.0.1:0", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.mark.parametrize("kind", ["a FIFO", "a directory", "a device"])
@pytest.mark.parametrize(
    "options",
    [
        ["--udp-key-file", "{}", "--port", "1=udp:127.0.0.1:0"],
        ["--pipeline", "{}", "--p4info", P4INFO],
        ["--pipeline", __file__, "--p4info", "{}"],
        ["--tls-cert", "{}", "--tls-key", __file__, "--tls-ca", __file__],
        ["--tls-cert", __file__, "--tls-key", "{}", "--tls-ca", __file__],
    ],
    ids=["key", "pipeline", "p4info", "certificate", "TLS key"],
)
def test_what_is_no_file_is_refused(options: list[str], kind: str, tmp_path: Path) -> None:
    path = tmp_path / "named"
    if kind == "a FIFO":
        os.mkfifo(path, 0o600)
    elif kind == "a directory":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    done = switch(*(option.format(path) for option in options))
    assert done.returncode in (1, 2), done
    assert str(path) in done.stderr
    assert kind.split()[1] in done.stderr or "no file" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_key_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("P4REDUCE_UDP_KEY", raising=False)
    assert process.read_udp_key(None) == b""
    monkeypatch.setenv("P4REDUCE_UDP_KEY", "0123456789abcdef")
    assert process.read_udp_key(None) == b"0123456789abcdef"
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_text("fedcba9876543210")
    assert process.read_udp_key(file) == b"fedcba9876543210"
    monkeypatch.setenv("P4REDUCE_UDP_KEY", "short")
    with pytest.raises(process.StartError, match=r"P4REDUCE_UDP_KEY: a key of 5 bytes; .* 16 to"):
        process.read_udp_key(None)
    done = switch("--port", "1=udp:127.0.0.1:0")
    assert done.returncode == 1
    assert "P4REDUCE_UDP_KEY: a key of 5 bytes" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("where", ["_open_data_plane", "_preload", "serving", "announce"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_switch_that_is_starting(
    where: str, number: signal.Signals, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", SLOW, where, str(int(number)), "--grpc-addr"]
    command += ["127.0.0.1:0", "--port", f"1=unix:{tmp_path}/port1.sock"]
    command += ["--ready-file", str(ready)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "p4reduce-switch stopped before it was ready\n"
    assert not done.stderr
    assert list(tmp_path.iterdir()) == []
