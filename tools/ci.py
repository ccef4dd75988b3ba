# SPDX-License-Identifier: Apache-2.0
"""Run what CI runs, and say at the end what was flaky: `.ci/run`, or `.ci/run test test-torch`.

A test that fails is run once more, alone. If it passes then, it is FLAKY: its first failure is
printed at the end, and more than `MOST_FLAKY` of them in a run fail it. Tests of kills, fuzzers and
the model are never repeated. `tests/quarantine.tsv` names tests that are flaky for a known reason.

All suites of engines take too long for one run. A run has those of `ENGINES` that its commit's hash
says, and names the others; `.ci/run test-engines` has all.

The last lines are pytest's closing lines of all suites that ran.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]

TEST_ENGINES = "test-engines"
MOST_FLAKY = 2  # in a run
MOST_QUARANTINED = 5
NEVER_REPEATED = re.compile(r"kill|fuzz|^tests/model/")
MINUTES = 88.0  # for everything: CI's machine ends the run after 90, without what is printed here
LAST_WORDS = 60.0  # seconds that pytest has to sum up when its time is over
SHOWN = 100  # lines of a flaky test's first failure
CLOSING = re.compile(r"=* ?(\d+ \w+.*|no tests ran) in [\d.]+s\b.*")


ENGINES = (
    ("mpi", "packaging"),
    ("torchrun", "kube"),
    ("ray_cluster",),
    ("slurm", "test_bound_sockets.py", "trees_of_lightgbm"),
    ("spark", "replicas_of_torchft"),
)


class Step(NamedTuple):
    """A target of make.

    Attributes:
        target: its name.
        minutes: its limit.
        repeats: whether its failed tests run once more.
        folders: and files of tests/engines, to which it is limited; none: it is not.
    """

    target: str
    minutes: float = MINUTES
    repeats: bool = True
    folders: tuple[str, ...] = ()


STEPS = (
    Step("lint", repeats=False),
    Step("docs", repeats=False),
    Step("test"),
    Step("test-long"),
    Step("test-torch"),
    Step("native-sanitize", repeats=False),  # alone they would run without sanitizers
    Step(TEST_ENGINES, 40.0),
)


class Quarantined(NamedTuple):
    """A row of the quarantine."""

    test: str
    since: str
    reason: str


@dataclass
class Outcome:
    """What became of a target: `failures` by test, and `unfinished` tests if it was ended."""

    code: int | None  # None: it ran out of time
    closing: str = ""
    failures: dict[str, str] = field(default_factory=dict)
    marked: set[str] = field(default_factory=set)  # of them, those with a marker not to repeat
    unfinished: list[str] = field(default_factory=list)
    passed: set[str] = field(default_factory=set)
    repeatable: bool = False  # pytest ended in order, and nothing failed but tests


class QuarantineError(ValueError):
    """The quarantine's file is wrong."""


def read_quarantine(root: Path) -> list[Quarantined]:
    """Return the rows of tests/quarantine.tsv. Raises QuarantineError."""
    path = root / "tests" / "quarantine.tsv"
    rows = []
    for number, line in enumerate(path.read_text().splitlines()[1:], 2):
        cells = line.split("\t")
        if len(cells) != 3 or not all(cells) or not re.fullmatch(r"\d{4}-\d\d-\d\d", cells[1]):
            raise QuarantineError(f"{path.name}:{number} is not: test, date as 2026-01-31, reason")
        if NEVER_REPEATED.search(cells[0]):
            raise QuarantineError(f"{path.name}:{number}: {cells[0]} is never repeated")
        rows.append(Quarantined(*cells))
    if len(rows) > MOST_QUARANTINED:
        raise QuarantineError(
            f"{path.name} has {len(rows)} rows; at most {MOST_QUARANTINED} may be"
        )
    return rows


def run(command: Sequence[str], root: Path, seconds: float) -> Outcome:
    """Run a command that may run pytest, and show its output."""
    with tempfile.TemporaryDirectory() as scratch:
        records = Path(scratch) / "records"
        process = subprocess.Popen(
            command,
            cwd=root,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "TEST_RECORDS": str(records)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        outcome = Outcome(None)
        copying = threading.Thread(target=_copy, args=(process, outcome), daemon=True)
        copying.start()
        try:
            outcome.code = process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            _end(process)
        except BaseException:
            _end(process)
            raise
        copying.join(LAST_WORDS)  # who has inherited the pipe may hold it open
        if records.exists():
            _read(records, outcome)
    return outcome


def _copy(process: subprocess.Popen[bytes], outcome: Outcome) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        sys.stdout.buffer.write(line)
        sys.stdout.flush()
        text = re.sub(r"\x1b\[[\d;]*m", "", line.decode(errors="replace")).rstrip()
        if CLOSING.fullmatch(text):
            outcome.closing = text


def _end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does, so that pytest sums up what ran; then without mercy."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LAST_WORDS)
            return


def _read(records: Path, outcome: Outcome) -> None:
    """Take in what the plugin `records` has written."""
    begun: dict[str, None] = {}
    for line in records.read_text().splitlines():
        record: dict[str, Any] = json.loads(line)
        test, what = record.get("test", ""), record["what"]
        if what == "begun":
            begun[test] = None
        elif what == "over":
            begun.pop(test, None)
        elif what == "passed":
            outcome.passed.add(test)
        elif what == "failed":
            outcome.failures.setdefault(test, record["text"])
            if record["never_repeated"]:
                outcome.marked.add(test)
        elif what == "exit":
            outcome.repeatable = record["code"] == 1
    outcome.unfinished = list(begun)


class Run:
    """A run of several steps, and what is to be said of it at the end."""

    def __init__(self, root: Path, python: str) -> None:
        self.root = root
        self.python = python
        self.end = time.monotonic() + 60 * MINUTES
        self.quarantine = read_quarantine(root)
        self.flaky: dict[str, str] = {}  # not in quarantine
        self.seen: set[str] = set()  # in quarantine, and failed in this run
        self.closing: list[str] = []
        self.faults: list[str] = []  # why it fails
        self.left: list[str] = []  # engines whose tests are not in this run

    def step(self, step: Step) -> bool:
        """Run a step, and its failed tests once more. Return whether it is in order."""
        folders = [f"tests/engines/{name}" for name in step.folders]
        limited = [f"ENGINES={' '.join(folders)}"] if folders else []
        outcome = self._run(["make", step.target, *limited], 60 * step.minutes)
        if outcome.closing:
            self.closing += [f"make {step.target}:", outcome.closing]
        if outcome.code is None:
            at = f", in {', '.join(outcome.unfinished)}" if outcome.unfinished else ""
            self.faults.append(f"make {step.target} ran out of time{at}")
        elif outcome.code and step.repeats and outcome.repeatable and outcome.failures:
            self._judge(outcome)
        elif outcome.code:
            self.faults.append(f"make {step.target} failed with exit code {outcome.code}")
        return not self.faults

    def _judge(self, outcome: Outcome) -> None:
        known = {row.test for row in self.quarantine}
        new = [test for test in outcome.failures if test not in known]
        too_many = len(self.flaky) + len(new) > MOST_FLAKY
        for test, text in outcome.failures.items():
            if test in outcome.marked or NEVER_REPEATED.search(test):
                self.faults.append(f"{test}: kills, fuzzers and the model are not repeated")
            elif too_many:
                self.faults.append(f"{test}: a run in which more than {MOST_FLAKY} fail fails")
            elif test not in self._run([self.python, "-m", "pytest", test], 1200.0).passed:
                self.faults.append(f"{test} failed alone, too")
            elif test in known:
                self.seen.add(test)
            else:
                self.flaky[test] = text

    def _run(self, command: Sequence[str], seconds: float) -> Outcome:
        return run(command, self.root, min(seconds, self.end - time.monotonic()))

    def report(self) -> str:
        """Return what is to be said at the end."""
        lines = []
        for test, text in self.flaky.items():
            lines += [f"FLAKY: {test} failed, and passed alone. Its failure:"]
            lines += [f"    {line}" for line in text.splitlines()[-SHOWN:]]
        lines.append(f"FLAKY: {len(self.flaky)} tests, of at most {MOST_FLAKY} in a run")
        lines += [f"    {test}" for test in self.flaky]
        lines.append(f"QUARANTINE: {len(self.quarantine)} tests, of at most {MOST_QUARANTINED}")
        for row in self.quarantine:
            failed = ", failed in this run" if row.test in self.seen else ""
            lines.append(f"    {row.test}, since {row.since}{failed}: {row.reason}")
        if self.left:
            names = ", ".join(self.left)
            lines.append(f"NOT RUN: engines {names}, which other commits have: make {TEST_ENGINES}")
        lines += [f"FAILED: {fault}" for fault in self.faults]
        return "\n".join([*lines, *self.closing])


def engines_of(root: Path) -> tuple[str, ...]:
    """Return the engines whose tests a commit's run has."""
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return ENGINES[int(done.stdout.strip() or "0", 16) % len(ENGINES)]


def main(arguments: Sequence[str], root: Path = ROOT, python: str = ".venv/bin/python") -> int:
    """Run the steps that are named, or all, up to the first that fails. Return the exit code."""
    steps = [step for step in STEPS if not arguments or step.target in arguments]
    if unknown := set(arguments) - {step.target for step in steps}:
        sys.exit(f"no such step: {', '.join(sorted(unknown))}; there are "
                 f"{', '.join(step.target for step in STEPS)}")  # fmt: skip
    # A shell starts what runs in the background with SIGINT ignored, and pytest would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    whole = Run(root, python)
    if not arguments and steps[-1].target == TEST_ENGINES:
        chosen = engines_of(root)
        whole.left = [name for part in ENGINES if part != chosen for name in part]
        steps[-1] = steps[-1]._replace(folders=chosen)
    try:
        good = all(whole.step(step) for step in steps)
    finally:
        print(whole.report(), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
