# SPDX-License-Identifier: Apache-2.0
"""Progress of long commands: on a terminal (a pty), as lines elsewhere, and on Ctrl-C."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launched import DEADLINE, ENVIRONMENT, LAB, ROOT, Launched
from p4reduce_lab.compare.run import ComparisonReport
from p4reduce_lab.errors import Interrupted
from p4reduce_lab.networks import links
from p4reduce_lab.processes.foreground import EndedError, run_through
from p4reduce_lab.progress import LongWork, duration, rate_text, waiting
from readable import readable
from rich.console import Console


class Clock:
    """Continues when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, highlight=False)


def written(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


# -- Lines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [10, 30, 70, 100])
def test_lines_have_the_rate_and_the_time_left(total: int) -> None:
    """A line for each tenth of the work."""
    shown, clock = console(terminal=False), Clock()
    with LongWork("steps", total, console=shown, clock=clock) as work:
        for step in range(1, total + 1):
            clock.now = step * 0.5
            work.to(step)
    lines = written(shown).splitlines()
    assert lines[0] == f"{total // 10}/{total} steps, 2.0 steps/s, {0.45 * total:.0f} s left"
    assert lines[-1] == f"{total}/{total} steps, 2.0 steps/s, {0.5 * total:.0f} s in all"
    assert len(lines) == 10


def test_the_time_left_goes_by_the_work_not_by_the_number() -> None:
    """The first of two cells was thought to take a tenth of the second."""
    shown, clock = console(terminal=False), Clock()
    with LongWork("cells", 2, work=110.0, console=shown, clock=clock) as work:
        clock.now = 20.0
        work.advance(10.0)
        assert work.speed() == "1/2 cells, 3.0 cells/min, 3 min left"
        clock.now = 220.0
        work.advance(100.0)
    assert written(shown).splitlines()[-1] == "2/2 cells, 32.7 cells/h, 4 min in all"


def test_ctrl_c_says_what_was_done() -> None:
    shown, clock = console(terminal=False), Clock()

    def measure() -> None:
        kept = "cells.json has it"
        with LongWork("cells", 5, console=shown, clock=clock, kept=lambda: kept) as work:
            work.to(2)
            clock.now = 130.0
            raise Interrupted(signal.SIGINT)

    with pytest.raises(Interrupted):
        measure()
    assert written(shown).splitlines()[-1] == "ended after 2 of 5 cells, 2 min; cells.json has it"


def test_an_error_has_its_own_message() -> None:
    shown = console(terminal=False)
    with pytest.raises(ValueError, match="wrong"), LongWork("cells", 5, console=shown):
        raise ValueError("wrong")
    assert written(shown) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(8.4, "8 s"), (89, "89 s"), (200, "3 min"), (3600, "1 h 0 min"), (7800, "2 h 10 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_rates_have_a_unit_in_which_they_can_be_read() -> None:
    assert rate_text(30, 10, "steps") == "3.0 steps/s"
    assert rate_text(3, 60, "cells") == "3.0 cells/min"
    assert rate_text(1, 7200, "cells") == "0.5 cells/h"
    assert rate_text(0, 0, "cells") == "0.0 cells/h"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_wait_tells_how_long_it_was(terminal: bool) -> None:
    """In one line, however long; what is in brackets is no markup."""
    shown, what = console(terminal=terminal), f"p4c compiles [{'x' * 120}].p4"
    with waiting(what, shown):
        pass
    assert re.search(rf"{re.escape(what)}: \d+ s", written(shown))
    with pytest.raises(KeyboardInterrupt), waiting(what, shown):
        raise KeyboardInterrupt
    assert f"{what}: ended after" in written(shown)
    assert all(one.startswith("[x") for one in written(shown).split("compiles ")[1:])


# -- On a terminal ----------------------------------------------------------------------------


class Terminal:
    """A command whose terminal is a pty: standard input, output and error, and Ctrl-C."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self.master, slave = pty.openpty()
        self._written = b""
        with os.fdopen(slave) as end:
            self.process = subprocess.Popen(
                ["setsid", "--ctty", *command],
                stdin=end,
                stdout=end,
                stderr=end,
                cwd=directory,
                env={**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "100"},
            )

    @property
    def text(self) -> str:
        """What was written so far, without control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._written.decode("utf-8", "replace"))

    def _read(self, seconds: float) -> bool:
        """Read what comes within that time; whether the other end is open."""
        if readable([self.master], seconds):
            try:
                self._written += os.read(self.master, 65536)
            except OSError:
                return False
        return True

    def read_until(self, pattern: str) -> str:
        """Wait until what was written has it; returns all of it, without control sequences."""
        end = time.monotonic() + DEADLINE
        while not re.search(pattern, text := self.text):
            assert time.monotonic() < end, f"no {pattern!r} in:\n{text}"
            assert self._read(1.0), f"it ended:\n{text}"
        return text

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def wait(self) -> int:
        """Wait for the end; what is written meanwhile is read, or the command would wait for us."""
        end = time.monotonic() + DEADLINE
        while self.process.poll() is None:
            assert time.monotonic() < end, self.text
            if not self._read(0.1):
                break
        return self.process.wait(DEADLINE)


@contextmanager
def terminal(command: list[str], directory: Path) -> Iterator[Terminal]:
    shown = Terminal(command, directory)
    try:
        yield shown
    finally:
        shown.process.kill()
        shown.process.wait()
        os.close(shown.master)


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_a_run_on_a_terminal_and_ctrl_c(tmp_path: Path) -> None:
    """A bar with rate and time left; then nothing stays, and it says how far it was."""
    with terminal([*LAB, "run", "--ranks", "2", "--steps", "20000"], tmp_path) as shown:
        shown.read_until(r"\d+/20000 +loss")
        shown.read_until(r"[\d.]+/s, \S.* left")
        shown.press_ctrl_c()
        assert shown.wait() == 130
        text = shown.read_until(r"ended: after step \d+ of 20000, loss [\d.]+")
    assert "Traceback" not in text
    assert "ended by SIGINT" in text


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_a_run_without_a_terminal(tmp_path: Path) -> None:
    run = Launched(tmp_path, "run", "--ranks", "2", "--steps", "20000")
    run.wait_for(r"step +\d+/20000 .* [\d.]+/s, \S.* left")
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert re.search(r"ended: after step \d+ of 20000", run.output)
    assert "\x1b" not in run.output  # no control sequences in a file


BENCH = """
import pathlib, sys
root, here = map(pathlib.Path, sys.argv[1:])
sys.path.insert(0, str(root))
import bench
import bench.run as runner
runner.BENCHES = (runner.Bench("First", "quick"), runner.Bench("Second", "endless"))
runner.ROOT, runner.OUTPUT = here, here / "results.json"
sys.argv = ["bench.run"]
runner.main()
"""
QUICK = """
import pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("--json") + 1])
target.write_text('{"results": [{"name": "a", "ms": 7.5}]}')
"""
ENDLESS = """
import pathlib, subprocess, time
child = subprocess.Popen(["sleep", "1000"])
try:
    pathlib.Path("begun").touch()
    time.sleep(1000)
finally:
    child.kill()
    child.wait()
    pathlib.Path("cleaned").touch()
"""


@pytest.mark.usefixtures("nothing_left")
def test_bench_on_a_terminal_and_ctrl_c(tmp_path: Path) -> None:
    """What was measured is shown; the one under way cleans up."""
    script = tmp_path / "run_bench.py"
    script.write_text(BENCH)
    package = tmp_path / "bench"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "quick.py").write_text(QUICK)
    (package / "endless.py").write_text(ENDLESS)
    with terminal([sys.executable, str(script), str(ROOT), str(tmp_path)], tmp_path) as shown:
        shown.read_until(r"1/2 benchmarks, .* left +Second \(endless\)")
        end = time.monotonic() + DEADLINE
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        shown.press_ctrl_c()
        assert shown.wait() == 130
        text = shown.read_until(r"7\.5")
    assert re.search(r"ended after 1 of 2 benchmarks, \d+ s; what was measured is shown", text)
    assert "Traceback" not in text
    assert (tmp_path / "cleaned").exists()


SIZES = "4K,8K,16K,32K,64K,128K,256K,512K,1M,2M,4M,8M"


def ended_comparison(tmp_path: Path, rate: str, *more: str) -> None:
    """Press Ctrl-C at a comparison under way; what was measured has to be kept."""
    command = [*LAB, "compare", "--contenders", "p4reduce", "--ranks", "2", "--rates", rate]
    command += ["--sizes", SIZES, "--turns", "20", "-o", str(tmp_path / "out"), *more]
    with terminal(command, tmp_path) as shown:
        shown.read_until(r"[1-9]\d*/12 cells, .* left")
        shown.press_ctrl_c()
        assert shown.wait() == 130
        text = shown.read_until(r"ended after \d+ of 12 cells, \S")
    assert "Traceback" not in text
    kept = tmp_path / "out" / "compare.json"
    assert "what was measured is in" in text
    done = re.findall(r"ended after (\d+) of 12 cells", text)
    sizes = [row.bytes for row in ComparisonReport.read(kept).rows if row.name == "p4reduce"]
    assert 1 <= len(sizes) < 12
    assert len(sizes) == int(done[-1])


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_compare_on_a_terminal_and_ctrl_c(tmp_path: Path) -> None:
    ended_comparison(tmp_path, "none")


@pytest.mark.long
@pytest.mark.root
@pytest.mark.skipif(links.unavailable() is not None, reason=str(links.unavailable()))
@pytest.mark.parametrize("kind", ["ethernet", "udp"])
@pytest.mark.usefixtures("nothing_left")
def test_compare_over_links_and_ctrl_c(tmp_path: Path, kind: str) -> None:
    """Its namespaces and interfaces are gone as well."""

    def devices() -> set[str]:
        shown = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True)
        return {row.split("@")[0].split()[0] for row in shown.stdout.splitlines()}

    before = devices()
    ended_comparison(tmp_path, "100Mbit", "--links", kind)
    mine = {name for name in devices() - before if name.startswith("p4")}
    end = time.monotonic() + DEADLINE
    while mine:  # other tests' interfaces come and go
        assert time.monotonic() < end, mine
        time.sleep(0.1)
        mine &= devices()


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_experiments_on_a_terminal_and_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "experiments" / "run.py")]
    command += ["--tasks", "cancer", "--switch", "none", "--output", str(tmp_path)]
    with terminal(command, tmp_path) as shown:
        shown.read_until(r"[1-9]\d*/\d+ trainings, .* left")
        shown.press_ctrl_c()
        assert shown.wait() == 130
        text = shown.read_until(r"ended after \d+ of \d+ trainings")
    assert "Traceback" not in text


# -- Commands that others wait for --------------------------------------------------------------


def test_a_command_that_is_not_through_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    with pytest.raises(EndedError, match="not finished after 2 s"):
        run_through([sys.executable, str(script)], 2.0, tmp_path)
    assert (tmp_path / "cleaned").exists() or not (tmp_path / "begun").exists()


def test_a_command_that_fails_has_its_output(tmp_path: Path) -> None:
    done = run_through([sys.executable, "-c", "print(1); raise SystemExit(3)"], DEADLINE, tmp_path)
    assert (done.returncode, done.stdout) == (3, "1\n")
