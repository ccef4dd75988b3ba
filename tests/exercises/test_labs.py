# SPDX-License-Identifier: Apache-2.0
"""The labs: a skeleton fails with the message that helps, and a solution passes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from exercises.__main__ import main

ROOT = Path(__file__).parents[2]
LABS = sorted((ROOT / "exercises").glob("[1-7]-*"))
P4 = pytest.mark.p4c

# What each skeleton is told first, and where.
FIRST = {
    "1-count": (
        "hdr.lab.count is 0, should be 1",
        "no line of skeleton.p4 assigns hdr.lab.count by itself",
    ),
    "2-sum": ("rank 1 has sent nothing so far", r"skeleton.p4:\d+: sm.mcast_grp = "),
    "3-loss": ("rank 0 only repeats", r"skeleton.p4:\d+: mark_to_drop\(sm\)"),
    "4-zeros": ("the result says 9, should say 5", "no line of skeleton.p4 assigns hdr.lab.next"),
    "5-narrow": (r"1 \+ -1 in hdr.lanes.a\[31:24\] is 1, should be 0", "hdr.lanes.a"),
    "6-neighbours": ("got .10101. 10101. 10101.., should get .101. 101. 101..", "hint: "),
    "7-lazy": ("1800 uploads of 1800 possible", "hint: "),
}

# A mistake that people make, and what the check has to say of it.
MISTAKES = {
    "2-sum: not cleared": (
        "2-sum/solution.p4",
        "heard.write(slot, 0);",
        "",
        "the slot must be as at the beginning",
    ),
    "3-loss: one copy": (
        "3-loss/solution.p4",
        "2 * (bit<32>)hdr.lab.slot + (hdr.lab.round & 1)",
        "(bit<32>)hdr.lab.slot",
        "one copy of a slot is not enough",
    ),
    "3-loss: no rounds": (
        "3-loss/solution.p4",
        "hdr.lab.round < known",
        "hdr.lab.round + 1000 < known",
        "the network delivered a frame of round 1 late",
    ),
    "4-zeros: junk": (
        "4-zeros/solution.p4",
        "hdr.lab.flags & PAYLOAD == 0",
        "hdr.lab.flags == 77",
        "a frame without PAYLOAD has no lanes",
    ),
    "5-narrow: limit": (
        "5-narrow/solution.p4",
        "if (wide > 127)",
        "if (wide > 126)",
        "OVERFLOW is set, although all sums fit",
    ),
    "5-narrow: one lane wraps": (
        "5-narrow/solution.p4",
        "add(word[15:8], other[15:8], third);",
        "third = word[15:8] + other[15:8];",
        "add with more bits than 8",
    ),
    "5-narrow: unsigned": (
        "5-narrow/solution.p4",
        "(int<16>)(int<8>)x + (int<16>)(int<8>)y",
        "(int<16>)(bit<16>)x + (int<16>)(bit<16>)y",
        "a lane is signed",
    ),
    "6-neighbours: one side": (
        "6-neighbours/solution.py",
        "(self.at - 1, self.at + 1)",
        "(self.at + 1,)",
        "add your model to the rows",
    ),
    "7-lazy: gradients": (
        "7-lazy/solution.py",
        "problem.gradient(model) - uploaded",
        "problem.gradient(model)",
        "sum the changes since each rank's last upload",
    ),
    "7-lazy: silent ranks stay away": (
        "7-lazy/solution.py",
        "change = np.zeros_like(change)",
        "continue",
        "an all-reduce is a call of all ranks",
    ),
}


def check(lab: str, file: Path, *options: str) -> tuple[int, str]:
    """Exit code and output of the command."""
    if file.suffix == ".p4" and shutil.which("p4c-bm2-ss") is None:
        pytest.skip("p4c-bm2-ss is not on PATH: install p4lang-p4c")
    done = CliRunner().invoke(main, [lab.partition("-")[0], str(file), *options])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def of(name: str, file: str) -> Path:
    [found] = (ROOT / "exercises" / name).glob(f"{file}.*")
    return found


def params(names: list[str]) -> list[object]:
    """Those in P4 need p4c."""
    return [
        pytest.param(name, marks=() if name.startswith(("6", "7")) else P4, id=name)
        for name in names
    ]


NAMES = params([lab.name for lab in LABS])


def test_there_are_seven() -> None:
    assert [lab.name for lab in LABS] == list(FIRST)


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_passes(name: str) -> None:
    code, text = check(name, of(name, "solution"))
    assert (code, text.splitlines()[-1]) == (0, "All is right."), text


@pytest.mark.parametrize("name", NAMES)
def test_a_skeleton_is_told_what_is_missing_and_where(name: str) -> None:
    code, text = check(name, of(name, "skeleton"))
    assert code == 1, text
    for part in FIRST[name]:
        assert re.search(part, text), text
    assert "Traceback" not in text


@pytest.mark.long
@pytest.mark.parametrize("name", params(list(MISTAKES)))
def test_a_mistake_is_named(name: str, tmp_path: Path) -> None:
    path, right, wrong, said = MISTAKES[name]
    solution = ROOT / "exercises" / path
    source = solution.read_text()
    assert right in source
    mine = tmp_path / f"mine{solution.suffix}"
    mine.write_text(source.replace(right, wrong))
    code, text = check(path, mine, "--all")
    assert code == 1, text
    assert said in text, text


@pytest.mark.p4c
def test_what_does_not_compile_is_shown_with_its_line(tmp_path: Path) -> None:
    mine = tmp_path / "mine.p4"
    mine.write_text(of("1-count", "solution").read_text().replace("seen + 1", "sean + 1"))
    code, text = check("1", mine)
    assert code == 1
    assert "does not compile" in text
    assert "mine.p4(13)" in text


def test_a_python_file_that_raises_is_shown_with_its_line(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(of("7-lazy", "solution").read_text().replace("moves.append(", "moves.appent("))
    code, text = check("7", mine)
    assert code == 1
    assert "AttributeError" in text
    assert re.search(r"where: mine.py:\d+: moves.appent", text)
    mine.write_text("x = 1")
    assert "has no train: the skeleton says what it is" in check("7", mine)[1]


def test_without_p4c_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "exercises", "1"],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 1
    assert "p4c-bm2-ss is not on PATH: apt-get install p4lang-p4c" in done.stderr
