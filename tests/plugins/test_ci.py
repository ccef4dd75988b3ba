# SPDX-License-Identifier: Apache-2.0
"""CI hides nothing: what fails and passes alone is named, counted, and not always allowed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import ci

pytestmark = pytest.mark.long  # pytest is started some forty times
PLUGINS = Path(__file__).parent

# Fails the first time that it is run, as a race would.
HEAD = """
from pathlib import Path
import os, time
import pytest

def once(name):
    place = Path(__file__).with_name(f"{name}.ran")
    if not place.exists():
        place.touch()
        raise AssertionError(f"the first run of {name}")
"""
PASSES = "\ndef test_that_passes(): ...\n"


def flaky(*names: str) -> str:
    return "".join(f"\ndef test_{name}():\n    once('{name}')\n" for name in names)


# Time is over when the process that collects the reports knows that the endless test has begun.
CONFTEST = """
import os, sys
from pathlib import Path
sys.path.insert(0, {plugins!r})
import records
from records import *

def pytest_runtest_logstart(nodeid):
    records.pytest_runtest_logstart(nodeid)
    if "endless" in nodeid and "PYTEST_XDIST_WORKER" not in os.environ:
        Path({begun!r}).touch()
"""
RUN = """
import subprocess, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tools import ci

class Popen(subprocess.Popen):
    def wait(self, timeout=None):
        while not Path({begun!r}).exists() and self.poll() is None:
            time.sleep(0.05)
        return super().wait(0.01 if timeout == 75 else timeout)

if {ends}:
    subprocess.Popen = Popen
ci.STEPS = (ci.Step("lint", repeats=False), ci.Step("test", 1.25 if {ends} else 60))
sys.exit(ci.main([], Path({here!r}), sys.executable))
"""


def ci_of(
    root: Path, tests: str, *, path: str = "test_it.py", rows: str = "", ends: bool = False
) -> tuple[int, list[str]]:
    """Exit code and lines of a run of CI whose tests are these."""
    begun = str(root / "begun")
    (root / "tests").mkdir()
    (root / "tests" / "quarantine.tsv").write_text(f"test\tsince\treason\n{rows}")
    (root / "tests" / "conftest.py").write_text(CONFTEST.format(plugins=str(PLUGINS), begun=begun))
    (root / "pytest.ini").write_text("[pytest]\nmarkers = fuzz\n")
    file = root / "tests" / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(HEAD + tests)
    command = f"{sys.executable} -m pytest -p xdist.plugin -n 2 --dist loadfile tests"
    (root / "Makefile").write_text(f"lint:\n\ttrue\ntest:\n\t{command}\n")
    (root / "run.py").write_text(
        RUN.format(root=str(ci.ROOT), here=str(root), begun=begun, ends=ends)
    )
    done = subprocess.run(
        [sys.executable, "run.py"],
        cwd=root,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            # Each of its runs would import them all.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(done.stdout)
    return done.returncode, done.stdout.splitlines()


def test_nothing_fails(tmp_path: Path) -> None:
    code, lines = ci_of(tmp_path, PASSES)
    assert code == 0
    assert lines[-4:-1] == [
        "FLAKY: 0 tests, of at most 2 in a run",
        "QUARANTINE: 0 tests, of at most 5",
        "make test:",
    ]
    assert re.fullmatch(r"=+ 1 passed in [\d.]+s =+", lines[-1])


def test_what_passes_alone_is_named_with_its_first_failure(tmp_path: Path) -> None:
    code, lines = ci_of(tmp_path, flaky("one", "two") + PASSES)
    assert code == 0
    end = lines[lines.index("FLAKY: 2 tests, of at most 2 in a run") :]
    assert sorted(end[1:3]) == [f"    tests/test_it.py::test_{name}" for name in ("one", "two")]
    assert "2 failed, 1 passed" in end[-1]
    report = "\n".join(lines[lines.index(end[0]) - 60 :])
    for name in ("one", "two"):
        assert f"FLAKY: tests/test_it.py::test_{name} failed, and passed alone" in report
        assert f"E           AssertionError: the first run of {name}" in report


def test_a_third_one_fails_the_run(tmp_path: Path) -> None:
    code, lines = ci_of(tmp_path, flaky("one", "two", "three"))
    assert code == 1
    assert sum("a run in which more than 2 fail fails" in line for line in lines) == 3
    assert "3 failed" in lines[-1]


def test_what_fails_alone_too_fails_the_run(tmp_path: Path) -> None:
    code, lines = ci_of(tmp_path, "\ndef test_wrong(): assert 1 == 2\n" + PASSES)
    assert code == 1
    assert "FAILED: tests/test_it.py::test_wrong failed alone, too" in lines


def test_a_skip_is_no_pass(tmp_path: Path) -> None:
    tests = flaky("gone") + "    pytest.skip('away')\n"
    code, lines = ci_of(tmp_path, tests)
    assert code == 1
    assert "FAILED: tests/test_it.py::test_gone failed alone, too" in lines


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("test_it.py", flaky("a_killed_rank")),
        ("test_kill_campaign.py", flaky("it")),
        ("model/test_model.py", flaky("it")),
        ("test_fuzz_it.py", flaky("it")),
        ("test_it.py", "\n@pytest.mark.fuzz" + flaky("it")),
        (
            "test_it.py",
            "\ndef test_it():\n    try: once('it')\n    except AssertionError: os._exit(3)\n",
        ),
    ],
    ids=["kill", "kills", "model", "fuzz", "marker", "crash"],
)
def test_some_tests_are_never_repeated(tmp_path: Path, path: str, tests: str) -> None:
    code, lines = ci_of(tmp_path, tests, path=path)
    assert code == 1
    assert any(line.endswith("fuzzers and the model are not repeated") for line in lines)


def test_errors_that_are_no_failed_tests_fail_the_run(tmp_path: Path) -> None:
    code, lines = ci_of(tmp_path, "\nimport nothing_of_that_name\n")
    assert code == 1
    assert any(re.match(r"FAILED: make test failed with exit code \d", line) for line in lines)


def test_the_quarantine_counts_apart_and_is_always_shown(tmp_path: Path) -> None:
    rows = "".join(
        f"tests/test_it.py::test_{name}\t2026-01-31\tits port is taken\n" for name in ("one", "six")
    )
    code, lines = ci_of(tmp_path, flaky("one", "two", "three"), rows=rows)
    assert code == 0
    assert "FLAKY: 2 tests, of at most 2 in a run" in lines
    assert lines[-5:-2] == [
        "QUARANTINE: 2 tests, of at most 5",
        "    tests/test_it.py::test_one, since 2026-01-31, failed in this run: its port is taken",
        "    tests/test_it.py::test_six, since 2026-01-31: its port is taken",
    ]


def test_a_suite_that_runs_out_of_time_fails(tmp_path: Path) -> None:
    """It says which test it was in, and pytest sums up those that ran."""
    tests = PASSES + "\ndef test_endless():\n    time.sleep(600)\n"
    code, lines = ci_of(tmp_path, tests, ends=True)
    assert code == 1
    assert "FAILED: make test ran out of time, in tests/test_it.py::test_endless" in lines
    assert re.fullmatch(r"=+ 1 passed.* in .* =+", lines[-1])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("tests/test_it.py::test_one\t2026-01-31\t", "is not: test, date"),
        ("tests/test_it.py::test_one\tyesterday\twhy", "is not: test, date"),
        ("tests/test_it.py::test_a_killed_rank\t2026-01-31\twhy", "is never repeated"),
        ("\n".join(f"tests/a.py::test_{n}\t2026-01-31\twhy" for n in range(6)), "has 6 rows"),
    ],
)
def test_a_wrong_quarantine(tmp_path: Path, row: str, why: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "quarantine.tsv").write_text(f"test\tsince\treason\n{row}\n")
    with pytest.raises(ci.QuarantineError, match=why):
        ci.read_quarantine(tmp_path)


def test_each_engine_is_in_one_part() -> None:
    folder = ci.ROOT / "tests" / "engines"
    there = {path.relative_to(folder).parts[0] for path in folder.rglob("test_*.py")}
    assert sorted(there) == sorted(name for part in ci.ENGINES for name in part)


def test_a_run_has_one_part_of_the_engines_and_names_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "quarantine.tsv").write_text("test\tsince\treason\n")
    (tmp_path / "Makefile").write_text("test-engines:\n\t@echo engines: $(ENGINES)\n")
    monkeypatch.setattr(ci, "STEPS", (ci.Step(ci.TEST_ENGINES),))
    left = ", ".join(ci.ENGINES[1])  # without a commit it is the first part
    for arguments, said in (([], "engines: tests/engines/mpi "), ([ci.TEST_ENGINES], "engines:\n")):
        assert ci.main(arguments, tmp_path, sys.executable) == 0
        output = capsys.readouterr().out
        assert said in output
        assert (f"NOT RUN: engines {left}" in output) == (not arguments)


def test_the_quarantine_names_tests_that_are_there() -> None:
    for row in ci.read_quarantine(ci.ROOT):
        file, _, name = row.test.partition("::")
        function = name.partition("[")[0].rpartition("::")[2]
        assert f"def {function}(" in (ci.ROOT / file).read_text(), row.test


def test_ci_and_the_hosted_workflow_run_the_same_steps() -> None:
    workflow = (ci.ROOT / ".github" / "workflows" / "ci.yml").read_text()
    steps = {step.target for step in ci.STEPS}
    assert set(re.findall(r"\.ci/run ([\w-]+)", workflow)) <= steps
    assert not re.search(r"make test", workflow), "failures are judged by .ci/run alone"
