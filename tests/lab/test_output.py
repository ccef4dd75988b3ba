# SPDX-License-Identifier: Apache-2.0
"""Every command where its output cannot be written: it ends, says so, and leaves nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launched import DEADLINE, ENVIRONMENT, LAB, Launched
from p4reduce_common.ending import ending_signals
from p4reduce_common.output import command, ends_with_reader

CONTROLLER = [sys.executable, "-m", "p4reduce_controller"]
SWITCH = [sys.executable, "-m", "p4reduce_switch"]
CHATTER = "while True: print('x' * 100)"

NO_SPACE = "cannot write to standard output: No space left on device"
CLOSED = "cannot write to standard output: Bad file descriptor"


def broken_pipe(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    read, write = os.pipe()
    os.close(read)
    try:
        return run(command, stdout=write, **options)
    finally:
        os.close(write)


def full_disk(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    with Path("/dev/full").open("w") as full:
        return run(command, stdout=full, **options)


def closed(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return run(["sh", "-c", 'exec "$@" >&-', "sh", *command], **options)


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        **{"env": ENVIRONMENT, "stderr": subprocess.PIPE, **options},
        text=True,
        timeout=DEADLINE,
        check=False,
    )


WAYS = [
    pytest.param(broken_pipe, 141, "", id="pipe"),
    pytest.param(full_disk, 1, NO_SPACE, id="full"),
    pytest.param(closed, 1, CLOSED, id="closed"),
]
Way = Callable[..., subprocess.CompletedProcess[str]]


def check(done: subprocess.CompletedProcess[str], code: int, said: str) -> None:
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert "Exception ignored" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "standard output" in line]
    assert len(lines) == bool(said)
    assert said in done.stderr


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment by which a system that is up is found."""
    up = Launched(tmp_path_factory.mktemp("up"), "up", "--ports", "2")
    up.wait_for("Ctrl-C ends it")
    exported = dict(re.findall(r"export (\w+)='?([^'\s]+)'?", up.output))
    yield {**ENVIRONMENT, **exported}
    up.process.send_signal(signal.SIGINT)
    up.wait()


@pytest.mark.parametrize(("way", "code", "said"), WAYS)
@pytest.mark.parametrize("script", [CHATTER, "print('short')"], ids=["endless", "short"])
@pytest.mark.usefixtures("nothing_left")
def test_exec(way: Way, code: int, said: str, script: str) -> None:
    nowhere = {"P4REDUCE_CONTROLLER": "unix:/nowhere", "P4REDUCE_INTERFACE": "unix:/port{port}"}
    command = [*LAB, "exec", "-n", "3", "--", sys.executable, "-c", script]
    check(way(command, env={**ENVIRONMENT, **nowhere}), code, said)


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_exec_with_a_switch_of_its_own() -> None:
    command = [*LAB, "exec", "-n", "2", "--", sys.executable, "-c", CHATTER]
    check(broken_pipe(command), 141, "")


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [["run", "--steps", "2", "--ranks", "2"], ["up", "--ports", "1"], ["--help"]],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.usefixtures("nothing_left")
def test_lab_commands(arguments: list[str], tmp_path: Path) -> None:
    check(full_disk([*LAB, *arguments], cwd=tmp_path), 1, NO_SPACE)


@pytest.mark.long
@pytest.mark.parametrize(("way", "code", "said"), WAYS)
def test_the_list_of_jobs(way: Way, code: int, said: str, elsewhere: dict[str, str]) -> None:
    check(way([*CONTROLLER, "job", "list"], env=elsewhere), code, said)


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ["job", "list", "--json"],
        ["switch", "status"],
        ["switch", "tables"],
        ["switch", "tables", "--json"],
        ["doctor"],
        ["doctor", "--json"],
        ["--help"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_controller_commands(arguments: list[str], elsewhere: dict[str, str]) -> None:
    check(full_disk([*CONTROLLER, *arguments], env=elsewhere), 1, NO_SPACE)


def test_watch_ends_with_its_reader_though_nothing_happens(elsewhere: dict[str, str]) -> None:
    done = broken_pipe([*CONTROLLER, "watch", "--json", "nobody"], env=elsewhere)
    check(done, 141, "")


def test_the_switch(tmp_path: Path) -> None:
    address = tmp_path / "s"
    check(full_disk([*SWITCH, "--grpc-addr", f"unix:{address}"]), 1, NO_SPACE)
    assert not address.exists()


def test_with_pythonunbuffered_a_line_is_there_at_once() -> None:
    program = (
        "import os, sys; from p4reduce_common.output import command\n"
        "with command('x'):\n"
        "    print('out'); print('error', file=sys.stderr); os._exit(0)"  # nothing is flushed
    )
    environment = ENVIRONMENT | {"PYTHONUNBUFFERED": "1"}
    done = run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)
    assert (done.stdout, done.stderr) == ("out\n", "error\n")


def test_the_switch_goes_on_when_its_log_cannot_be_written(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    arguments = ["--grpc-addr", f"unix:{tmp_path}/s", "--ready-file", str(ready)]
    arguments += ["--port", f"1=unix:{tmp_path}/p"]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [*SWITCH, *arguments, "--log-level", "debug"], stdout=subprocess.PIPE, stderr=full
        )
    try:
        deadline = time.monotonic() + DEADLINE
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.terminate()
        out, _ = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert b"stopped" in out


@contextlib.contextmanager
def broken() -> Iterator[None]:
    """This process's own standard output is a pipe without a reader."""
    read, write = os.pipe()
    os.close(read)
    before = sys.stdout
    sys.stdout = os.fdopen(write, "w")
    try:
        yield
    finally:
        sys.stdout.close()
        sys.stdout = before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_another_thread_cannot_write_ends_the_main_one() -> None:
    stack: list[str] = []

    def write() -> None:
        print("text", flush=True)
        stack.append("went on")

    def work() -> None:
        thread = threading.Thread(target=write)
        try:
            thread.start()
            time.sleep(60)
            stack.append("slept")
        finally:
            stack.append("unwound")
            print("what is said while unwinding is lost")
            thread.join()

    with pytest.raises(SystemExit) as error, broken(), command("test"):
        work()
    assert (error.value.code, stack) == (141, ["unwound"])


def test_it_says_so_though_somebody_swallowed_the_exception() -> None:
    def careless() -> None:
        with contextlib.suppress(SystemExit):
            print("text", flush=True)

    with pytest.raises(SystemExit) as error, broken(), command("test"):
        careless()
    assert error.value.code == 141


def test_a_bug_is_not_hidden_by_output_that_fails() -> None:
    def fail() -> None:
        print("text")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), broken(), command("test"):
        fail()


def test_a_socket_without_a_peer_does_not_end_a_command() -> None:
    read, write = os.pipe()
    os.close(read)
    with command("test"):
        with pytest.raises(BrokenPipeError):
            os.write(write, b"x")
        os.close(write)


def test_waiting_for_the_reader_ends_with_the_block() -> None:
    before = threading.active_count()
    with command("test"):
        with ends_with_reader():
            assert threading.active_count() == before + 1
        assert threading.active_count() == before


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many"), "test: Too many: `ulimit -n` has this process's limit"),
        (OSError(errno.EROFS, "Read-only", "/tmp/x"), "test: Read-only: /tmp/x"),
        (OSError(errno.ENOSPC, "No space"), "test: No space"),
    ],
)
def test_what_is_lacking_is_one_line(
    error: OSError, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, command("test"):
        raise error
    assert ended.value.code == 1
    assert capfd.readouterr().err == f"{said}\n"


def test_other_errors_of_the_system_are_not_hidden() -> None:
    with pytest.raises(FileNotFoundError), command("test"):
        raise FileNotFoundError(errno.ENOENT, "No such file", "/tmp/x")


@pytest.mark.parametrize(("before", "ends"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_a_terminal_that_closes_ends_a_command_but_after_nohup(
    before: signal.Handlers, ends: bool
) -> None:
    ours = signal.signal(signal.SIGHUP, before)
    try:
        assert (signal.SIGHUP in ending_signals()) == ends
        assert {signal.SIGINT, signal.SIGTERM} <= set(ending_signals())
    finally:
        signal.signal(signal.SIGHUP, ours)


AT_EACH_STEP = """
import os, signal, sys, threading
from p4reduce_common.ending import EndRequest

def wait(before):
    request, steps = EndRequest(), 0
    signal.signal(signal.SIGTERM, lambda *_: request.make())

    def at_a_line(frame, event, argument):
        nonlocal steps
        if event == "line":
            steps += 1
            if steps == before:
                signal.raise_signal(signal.SIGTERM)
        return at_a_line

    # Where there are fewer steps, the signal comes within the last.
    later = threading.Timer(0.1, lambda: steps < before and os.kill(os.getpid(), signal.SIGTERM))
    later.start()
    print("before step", before, flush=True)
    sys.settrace(at_a_line)
    request.wait()
    sys.settrace(None)
    later.join()
    return steps >= before

before = 1
while wait(before):
    before += 1
print("all", before)
"""


def test_a_signal_before_any_step_of_waiting_ends_it() -> None:
    """The handler runs in the thread that waits, and must not wait for what that thread holds."""
    ended = subprocess.run(
        [sys.executable, "-c", AT_EACH_STEP], capture_output=True, text=True, timeout=DEADLINE
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout.split()[-1]) > 2, ended.stdout
