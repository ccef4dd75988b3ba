# SPDX-License-Identifier: Apache-2.0
"""Finds a C compiler, and the processor to compile for."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from p4reduce_native.errors import CompilerMissingError

HOW_TO_GET_A_COMPILER = (
    "install one (Debian and Ubuntu: apt-get install gcc libc6-dev; or without root: "
    "pip install ziglang)"
)

# Of the levels of the x86-64 psABI these are worth a file of their own, the best first: one with
# AVX-512, one with AVX2, any processor. Each takes these flags of /proc/cpuinfo.
_V3_FLAGS = "avx avx2 bmi1 bmi2 cx16 f16c fma abm lahf_lm movbe popcnt pni sse4_1 sse4_2 ssse3"
_V4_FLAGS = f"{_V3_FLAGS} avx512bw avx512cd avx512dq avx512f avx512vl"
_X86_64_FLAGS = {"x86-64-v4": _V4_FLAGS, "x86-64-v3": _V3_FLAGS, "x86-64": ""}
_X86_64_LEVELS = tuple(_X86_64_FLAGS)


@dataclass(frozen=True)
class Compiler:
    """A command that takes gcc's options.

    Attributes:
        command: the words in front of the options.
        identity: changes when the compiler does, without running it.
        is_zig: whether it is the `ziglang` wheel, which names processors in its own way and keeps
            a cache of its own.
    """

    command: tuple[str, ...]
    identity: str
    is_zig: bool = False

    def machine_flags(self, level: str) -> list[str]:
        """Return the options that compile for `level`, as `cpu_level` names it."""
        if level in _X86_64_LEVELS[:-1]:
            return [f"-march={level.replace('-', '_') if self.is_zig else level}"]
        return ["-mcpu=baseline"] if self.is_zig else []


def find_compiler(environment: Mapping[str, str] = os.environ) -> Compiler:
    """Return `$CC` if it is set, else `cc`, `gcc` or `clang` on PATH, else the `ziglang` wheel.

    Raises:
        CompilerMissingError: none of them exists, or `$CC` names nothing executable.
    """
    path = environment.get("PATH", os.defpath)
    wanted = environment.get("CC", "").strip()
    if wanted:
        return _named(wanted, path)
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name, path=path)
        if found is not None:
            return Compiler((found,), _identity(found))
    zig = _zig()
    if zig is None:
        raise CompilerMissingError(f"there is no C compiler; {HOW_TO_GET_A_COMPILER}")
    return Compiler((sys.executable, "-m", "ziglang", "cc"), _identity(zig), is_zig=True)


@functools.cache
def cpu_level() -> str:
    """Return the abilities of this processor, as part of a file's name.

    A file is never loaded on a processor that lacks its instructions, even if machines share a home
    directory.
    """
    levels = cpu_levels(platform.machine())
    if len(levels) == 1:
        return levels[0]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return levels[-1]
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            flags = set(value.split())
            return next(one for one in levels if flags.issuperset(_X86_64_FLAGS[one].split()))
    return levels[-1]


def cpu_levels(machine: str) -> tuple[str, ...]:
    """Return the levels of a machine's processors, the best first. `machine` is named as in
    `platform`."""
    return _X86_64_LEVELS if machine.lower() in ("x86_64", "amd64") else (machine.lower(),)


def levels_below(level: str) -> tuple[str, ...]:
    """Return a level and those whose files its processors can run too, the best first."""
    if level in _X86_64_LEVELS:
        return _X86_64_LEVELS[_X86_64_LEVELS.index(level) :]
    return (level,)


def zig_for(machine: str, glibc: str) -> Compiler:
    """Return the `ziglang` wheel as a compiler for another machine.

    Args:
        machine: "x86_64" or "aarch64".
        glibc: the oldest C library to run with, "2.28".

    Raises:
        CompilerMissingError: `ziglang` is not installed.
    """
    zig = _zig()
    if zig is None:
        raise CompilerMissingError("ziglang is not installed; pip install ziglang")
    target = f"{machine}-linux-gnu.{glibc}"
    command = (sys.executable, "-m", "ziglang", "cc", "-target", target)
    return Compiler(command, f"{_identity(zig)} {target}", is_zig=True)


def _named(wanted: str, path: str) -> Compiler:
    try:
        words = shlex.split(wanted)
    except ValueError as error:
        raise CompilerMissingError(f"CC={wanted} cannot be read as a command: {error}") from None
    found = shutil.which(words[0], path=path) if words else None
    if found is None:
        raise CompilerMissingError(
            f"CC={wanted} names no program that can be run; correct it or leave CC unset"
        )
    # Behind a wrapper such as ccache is the compiler proper.
    programs = [found, *filter(None, (shutil.which(word, path=path) for word in words[1:]))]
    return Compiler((found, *words[1:]), " ".join([*map(_identity, programs), *words[1:]]))


def _zig() -> str | None:
    """The program inside of the `ziglang` wheel, if that is installed."""
    try:
        spec = importlib.util.find_spec("ziglang")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).with_name("zig")
    return str(program) if program.is_file() else None


def _identity(program: str) -> str:
    real = Path(program).resolve()
    status = real.stat()
    return f"{real} {status.st_size} {status.st_mtime_ns}"
