# SPDX-License-Identifier: Apache-2.0
"""With changed P4 sources no old program runs in silence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from p4reduce_lab import fresh_program
from p4reduce_lab.errors import LabError

ROOT = Path(__file__).parents[2]
# In place of p4c: it "compiles" to the sources' own text.
WORKS = """#!/bin/sh
if [ "$1" = --version ]; then echo "Version 9.9"; exit; fi
while [ $# -gt 0 ]; do
    case $1 in -o) json=$2 ;; --p4runtime-files) info=$2 ;; esac
    shift
done
echo '{"program": ""}' > "$json"
echo new > "$info"
"""
FAILS = "#!/bin/sh\necho 'lanes.p4(3): error: no such thing' >&2\nexit 1\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the checkout's P4 program, which is the one that is looked at."""
    shutil.copytree(ROOT / "p4src", tmp_path / "p4src")
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "compile_p4.py", tmp_path / "tools")
    compiled = tmp_path / "p4src" / "compiled"
    files = (compiled / "p4reduce.json", compiled / "p4reduce.p4info.txtpb")
    monkeypatch.setattr(fresh_program, "compiled_files", lambda: files)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


@pytest.fixture
def refresh() -> Callable[[], None]:
    """Looks again each time, as a new process does."""
    return fresh_program.refresh_program.__wrapped__


def change(checkout: Path) -> None:
    with (checkout / "p4src" / "v1model" / "lanes.p4").open("a") as file:
        file.write("// changed\n")


def put_compiler(checkout: Path, script: str) -> None:
    (checkout / "bin").mkdir(exist_ok=True)
    compiler = checkout / "bin" / "p4c-bm2-ss"
    compiler.write_text(script)
    compiler.chmod(0o755)
    for tool in ("cp", "sh"):
        if not (checkout / "bin" / tool).exists():
            (checkout / "bin" / tool).symlink_to(f"/bin/{tool}")


def test_unchanged_sources_say_nothing(
    checkout: Path, refresh: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    refresh()
    assert capfd.readouterr().err == ""


def test_without_a_compiler_the_console_says_which_program_runs(
    checkout: Path, refresh: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    before = (checkout / "p4src" / "compiled" / "sources.sha256").read_text()
    change(checkout)
    refresh()
    said = capfd.readouterr().err
    assert "WARNING: the sources in p4src/ have changed" in said
    assert f"the OLD program runs, compiled from {before[:12]}" in said


def test_with_a_compiler_the_new_program_runs(
    checkout: Path, refresh: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    change(checkout)
    put_compiler(checkout, WORKS)
    refresh()
    assert "compiling them" in capfd.readouterr().err
    compiled = checkout / "p4src" / "compiled"
    assert (compiled / "p4reduce.p4info.txtpb").read_text() == "new\n"
    assert not [file.name for file in compiled.iterdir() if file.name.startswith(".")]
    refresh()
    assert capfd.readouterr().err == ""  # it is up to date now


def test_sources_that_do_not_compile_are_refused_each_time(
    checkout: Path, refresh: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    change(checkout)
    put_compiler(checkout, FAILS)
    for _ in range(2):
        with pytest.raises(LabError, match="do not compile; p4c's messages are above"):
            refresh()
        assert "no such thing" in capfd.readouterr().err
