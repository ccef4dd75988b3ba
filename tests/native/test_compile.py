# SPDX-License-Identifier: Apache-2.0
"""C is compiled once, cached, and only loaded from a cache that nobody else can have written."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from p4reduce_native import compile as compiling
from p4reduce_native import compiler
from p4reduce_native.cache import Cache, cache_directory
from p4reduce_native.compile import compile_shared, prebuild
from p4reduce_native.errors import (
    CacheError,
    CompileError,
    CompilerMissingError,
    NativeUnavailableError,
)
from p4reduce_native.library import load, runtime

HAS_COMPILER = any(map(shutil.which, ("cc", "gcc", "clang"))) or (
    importlib.util.find_spec("ziglang") is not None
)
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="needs a C compiler or ziglang")

ANSWER = {"answer.c": "int answer(void) { return 42; }\n"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache"
    monkeypatch.setenv("P4REDUCE_CACHE_DIR", str(directory))
    return directory


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without any: a PATH without `cc`, and no `ziglang`."""
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.delenv("CC", raising=False)
    find_spec = importlib.util.find_spec

    def without_zig(name: str, package: str | None = None) -> importlib.machinery.ModuleSpec | None:
        return None if name == "ziglang" else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_zig)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that adds a line to the file whenever it runs."""
    real = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if real is None:
        pytest.skip("needs cc, gcc or clang on PATH")
    log = tmp_path / "runs"
    wrapper = tmp_path / "counting-cc"
    wrapper.write_text(f'#!/bin/sh\necho run >> {log}\nexec {real} "$@"\n')
    wrapper.chmod(0o700)
    monkeypatch.setenv("CC", str(wrapper))
    return log


def runs(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def answer(path: Path) -> int:
    return int(load(path).answer())


@needs_compiler
def test_the_runtime_library_is_compiled_and_loaded(cache: Path) -> None:
    assert runtime().p4r_capture_new
    assert runtime() is runtime()


@needs_compiler
def test_a_text_is_compiled_once(cache: Path, counted: Path) -> None:
    first = compile_shared("answer", ANSWER)
    assert answer(first) == 42
    assert compile_shared("answer", ANSWER) == first
    assert runs(counted) == 1
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    digest = hashlib.sha256(first.read_bytes()).hexdigest()
    assert first.with_suffix(".sha256").read_text().split() == [digest]
    # Nothing that was only needed to build it stays.
    assert not list(cache.glob("build-*"))


@needs_compiler
def test_everything_that_matters_is_in_the_key(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "value.h").write_text("#define VALUE 1\n")
    text = {"answer.c": '#include "value.h"\nint answer(void) { return VALUE + MORE; }\n'}

    def build(more: int) -> Path:
        return compile_shared("answer", text, include=[headers], flags=[f"-DMORE={more}"])

    paths = [build(0), build(1)]
    (headers / "value.h").write_text("#define VALUE 5\n")
    paths.append(build(1))
    text["answer.c"] += "\n"
    paths.append(build(1))
    assert [answer(path) for path in paths] == [1, 2, 6, 6]
    monkeypatch.setattr(compiling, "cpu_level", lambda: "x86-64")
    if platform.machine() == "x86_64":
        paths.append(build(1))
        assert "-x86-64-" in paths[-1].name
    assert len(set(paths)) == len(paths)


def test_a_compilers_complaint_is_passed_on(cache: Path) -> None:
    if not HAS_COMPILER:
        pytest.skip("needs a C compiler or ziglang")
    with pytest.raises(
        CompileError, match=r"could not compile wrong .*error: .*nonsense"
    ) as caught:
        compile_shared("wrong", {"wrong.c": "int f(void) { return nonsense; }\n"})
    assert "nonsense" in caught.value.stderr
    assert not list(cache.glob("*.so"))


@pytest.mark.parametrize("name", ["../x", "a b", ""])
def test_names_that_would_leave_the_cache_are_refused(cache: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a name for a"):
        compile_shared(name, ANSWER)
    with pytest.raises(ValueError, match="not a name for a"):
        compile_shared("answer", {f"{name}.c/": ""})


# -- Without a compiler --------------------------------------------------------------------------


def test_no_compiler_says_how_to_get_one(cache: Path, no_compiler: None) -> None:
    with pytest.raises(CompilerMissingError) as caught:
        compile_shared("answer", ANSWER)
    assert str(caught.value) == (
        "answer has to be compiled, and there is no C compiler; install one (Debian and Ubuntu: "
        "apt-get install gcc libc6-dev; or without root: pip install ziglang)"
    )


def test_what_is_cached_needs_no_compiler(
    cache: Path, counted: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    path = compile_shared("answer", ANSWER)
    request.getfixturevalue("no_compiler")
    assert compile_shared("answer", ANSWER) == path
    with pytest.raises(CompilerMissingError):
        compile_shared("answer", {"answer.c": "int answer(void) { return 43; }\n"})


@needs_compiler
def test_what_is_compiled_already_waits_for_no_other_compilation(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a switch that restarts could wait for a minute, as names share their locks."""
    path = compile_shared("answer", ANSWER)

    def lock(self: Cache, name: str, timeout_s: float) -> None:
        raise AssertionError(f"{name} waits")

    monkeypatch.setattr(Cache, "lock", lock)
    assert compile_shared("answer", ANSWER) == path


def test_cc_that_names_nothing_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(CompilerMissingError, match="CC=no-such-compiler -m64 names no program"):
        compile_shared("answer", ANSWER)


def test_zig_is_taken_where_there_is_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_compiler: None
) -> None:
    zig = tmp_path / "ziglang" / "zig"
    zig.parent.mkdir()
    zig.write_text("")
    package = importlib.machinery.ModuleSpec(
        "ziglang", None, origin=str(zig.with_name("__init__.py"))
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: package)
    found = compiler.find_compiler()
    assert found.command == (sys.executable, "-m", "ziglang", "cc")
    assert found.machine_flags("x86-64-v4") == ["-march=x86_64_v4"]
    assert found.machine_flags("x86-64-v3") == ["-march=x86_64_v3"]
    assert found.machine_flags("x86-64") == ["-mcpu=baseline"]


@needs_compiler
def test_a_package_with_the_compiled_file_needs_no_compiler(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    package = tmp_path / "prebuilt"
    machine, found = platform.machine(), compiler.find_compiler()
    written = prebuild(package, "answer", ANSWER, compiler=found, machine=machine)
    request.getfixturevalue("no_compiler")
    monkeypatch.setattr(compiling, "PREBUILT", package)
    path = compile_shared("answer", ANSWER)
    assert path in written
    assert answer(path) == 42
    # Another processor takes the file that every processor can run.
    if platform.machine() == "x86_64":
        monkeypatch.setattr(compiling, "cpu_level", lambda: "x86-64-v3")
        assert "-x86-64-v3-" in compile_shared("answer", ANSWER).name
        monkeypatch.setattr(compiling, "cpu_level", lambda: "x86-64")
        assert "-x86-64-" in compile_shared("answer", ANSWER).name
        path = compile_shared("answer", ANSWER)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CompilerMissingError):
        compile_shared("answer", ANSWER)


def test_machine_code_is_for_linux(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NativeUnavailableError, match="for Linux, and this is darwin"):
        compile_shared("answer", ANSWER)
    assert not cache.exists()


# -- A cache that is not to be trusted -----------------------------------------------------------


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720])
def test_a_cache_that_others_may_write_to_is_refused(cache: Path, mode: int) -> None:
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(CacheError, match=rf"others may write there \(mode {mode:o}\); chmod 700"):
        compile_shared("answer", ANSWER)
    assert not list(cache.iterdir())


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
def test_somebody_elses_cache_is_refused(cache: Path) -> None:
    cache.mkdir(mode=0o700)
    os.chown(cache, 12345, 12345)
    with pytest.raises(CacheError, match="belongs to user 12345, not to 0"):
        compile_shared("answer", ANSWER)
    assert not list(cache.iterdir())


def test_a_link_in_place_of_the_cache_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheError, match="should be a directory"):
        compile_shared("answer", ANSWER)


@pytest.mark.parametrize("damage", ["truncated", "changed", "no hash", "hash of no file", "empty"])
def test_a_damaged_file_is_compiled_again(cache: Path, counted: Path, damage: str) -> None:
    path = compile_shared("answer", ANSWER)
    whole = path.read_bytes()
    # Never in place: whoever has loaded the file would crash.
    path.unlink()
    if damage == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "changed":
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(whole)
        if damage == "no hash":
            path.with_suffix(".sha256").unlink()
        else:
            path.with_suffix(".sha256").write_text("\xff\n")
    assert compile_shared("answer", ANSWER) == path
    assert runs(counted) == 2
    assert answer(path) == 42


def test_processes_at_the_same_time_compile_once(cache: Path, counted: Path) -> None:
    script = (
        "from p4reduce_native.compile import compile_shared\n"
        "from p4reduce_native.library import load\n"
        f"path = compile_shared('answer', {ANSWER!r})\n"
        "print(load(path).answer())\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert outputs == ["42\n"] * 6
    assert runs(counted) == 1


def test_who_does_not_get_a_lock_in_time_goes_on_without_it(cache: Path) -> None:
    with Cache(cache).lock("x", 240), Cache(cache).lock("x", 0):
        pass


@pytest.mark.long
def test_the_cache_does_not_grow_for_ever(cache: Path) -> None:
    files = Cache(cache)
    for i in range(550):
        built = cache / "built"
        built.write_bytes(b"%d" % i)
        os.utime(files.put(f"n{i}", built), (i, i))
    assert len(list(cache.glob("*.so"))) <= 513
    assert files.find("n549") is not None
    assert files.find("n0") is None
    assert len(list(cache.glob("*.sha256"))) == len(list(cache.glob("*.so")))


@needs_compiler
def test_what_killed_compilations_left_is_removed(cache: Path) -> None:
    cache.mkdir(mode=0o700)
    old, new, other = (cache / name for name in ("build-old", "build-new", "builds"))
    for directory in (old, new, other):
        directory.mkdir()
        (directory / "built.so").write_bytes(b"half of it")
    two_hours_ago = time.time() - 7200
    for directory in (old, other):
        os.utime(directory, (two_hours_ago, two_hours_ago))
    compile_shared("answer", ANSWER)
    assert not old.exists()
    assert new.exists()
    assert other.exists()


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("P4REDUCE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "p4reduce"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "p4reduce"
    monkeypatch.setenv("P4REDUCE_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_directory() == tmp_path / "mine"


def test_a_file_that_is_no_library_is_told(tmp_path: Path) -> None:
    path = tmp_path / "wrong.so"
    path.write_text("nonsense")
    with pytest.raises(NativeUnavailableError, match=f"cannot load {path}"):
        load(path)
    assert ctypes.CDLL(None)  # the loader continues


# As /proc/cpuinfo names them; x86-64-v4 of the psABI is all of these.
X86_64_V4 = """
    abm avx avx2 avx512bw avx512cd avx512dq avx512f avx512vl bmi1 bmi2 cx16 f16c fma lahf_lm movbe
    pni popcnt sse4_1 sse4_2 ssse3
"""


@pytest.mark.parametrize(
    ("lacks", "level"),
    [((), "x86-64-v4"), (("avx512vl",), "x86-64-v3"), (("avx512vl", "avx2"), "x86-64")],
)
def test_the_best_level_whose_flags_are_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: tuple[str, ...], level: str
) -> None:
    flags = sorted(set(X86_64_V4.split()).difference(lacks))
    text = f"processor\t: 0\nflags\t\t: fpu {' '.join(flags)} sse2\n"
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(Path, "read_text", lambda self: text)
    assert compiler.cpu_level.__wrapped__() == level


@needs_compiler
def test_sources_are_utf_8_in_every_locale(tmp_path: Path) -> None:
    """A comment may have characters that the locale's encoding lacks."""
    header = tmp_path / "include" / "answer.h"
    header.parent.mkdir()
    header.write_text("/* … */\n#define ANSWER 42\n", "utf-8")
    program = f"""
from pathlib import Path
from p4reduce_native.compile import compile_shared
source = '/* \\u2026 */\\n#include "answer.h"\\nint answer(void) {{ return ANSWER; }}\\n'
compile_shared("answer", {{"answer.c": source}}, include=[Path({str(header.parent)!r})])
"""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {**os.environ, **ascii_only, "P4REDUCE_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", program], env=environment, timeout=300, check=True)
