# SPDX-License-Identifier: Apache-2.0
"""The closing summary of what was skipped, by runs of pytest in a process of their own."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import skip_summary

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(40))
@pytest.mark.skip(reason="simple_switch_grpc is not on PATH: install p4lang-bmv2")
def test_switch(number): ...

@pytest.mark.skipif(True, reason="fetches gigabytes: run it by make test-install")
def test_install(): ...

def test_module():
    pytest.importorskip("no_such_module.part")

@pytest.mark.parametrize("version", [8, 9])
def test_some_version(version):
    pytest.skip(f"made by version {version}")

def test_that_passes(): ...

@pytest.mark.xfail(reason="not yet", strict=True)
def test_not_yet():
    raise AssertionError
"""
EXPECTED = (
    "skipped 44: needs simple_switch_grpc (40), made by version N (2), "
    "fetches gigabytes: make test-install (1), needs no_such_module (1)"
)


def lines_of_a_run(directory: Path, tests: str, *options: str) -> list[str]:
    """What pytest prints with the plugin and with this repository's way of reporting."""
    (directory / "test_it.py").write_text(tests)
    plugins = Path(skip_summary.__file__).parent
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "skip_summary",
        "-rfExX",
        "--rootdir",
        str(directory),
        *options,
        "test_it.py",
    ]
    # Other plugins only take time here.
    environment = {"PYTHONPATH": str(plugins), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "1")], ids=["one-process", "xdist"])
def test_skips_are_grouped_and_the_last_line_is_pytests(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    lines = lines_of_a_run(tmp_path, TESTS, *options)
    at = next(i for i, line in enumerate(lines) if line.startswith("skipped "))
    rest = itertools.takewhile(lambda line: line.startswith("  "), lines[at + 1 :])
    assert " ".join([lines[at], *(line.strip() for line in rest)]) == EXPECTED
    assert all(len(line) <= 100 for line in lines[at:])
    assert "1 passed, 44 skipped, 1 xfailed in " in lines[-1]
    assert not any("SKIPPED" in line for line in lines)


def test_each_skip_is_shown_where_somebody_asks(tmp_path: Path) -> None:
    lines = lines_of_a_run(tmp_path, TESTS, "-rs")
    assert any(line.startswith("SKIPPED [40] ") for line in lines)


def test_nothing_is_said_where_nothing_was_skipped(tmp_path: Path) -> None:
    lines = lines_of_a_run(tmp_path, "def test_it(): ...\n")
    assert not any("skipped" in line for line in lines)


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("Skipped: could not import 'scipy.sparse': No module named 'scipy'", "needs scipy"),
        ("p4c-bm2-ss is not on PATH", "needs p4c"),
        ("Skipped: needs p4c-bm2-ss on PATH", "needs p4c"),
        (
            "p4c here is 1.2.3, compiled/ was made by 1.2.4",
            "p4c here is N.N.N, compiled/ was made by N.N.N",
        ),
        ("needs root for packet sockets", "needs root"),
        ("tshark is not installed (apt-get install tshark)", "needs tshark"),
        ("no machine code: no C compiler: cc, gcc, clang or ziglang", "needs a C compiler"),
        (
            "a reason\nof several lines " + "and words " * 20,
            "a reason of several lines and words and words and words ...",
        ),
    ],
)
def test_reasons_of_the_suite(reason: str, name: str) -> None:
    assert skip_summary.group(reason) == name
