# SPDX-License-Identifier: Apache-2.0
"""Compiles C to a shared object, once for each text, and keeps it in the cache."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from p4reduce_native.cache import BUILDING, Cache, cache_directory, is_whole, write_digest
from p4reduce_native.compiler import (
    HOW_TO_GET_A_COMPILER,
    Compiler,
    cpu_level,
    cpu_levels,
    find_compiler,
    levels_below,
)
from p4reduce_native.errors import CompileError, CompilerMissingError, NativeUnavailableError

Sources = Mapping[str, str] | Sequence[Path]
"""Text by file name, or files."""

BASE_FLAGS = (
    "-std=gnu11",
    "-D_GNU_SOURCE",
    "-O3",
    "-g1",
    "-fPIC",
    "-shared",
    "-pthread",
    # The library's own functions call each other directly, whatever else the process has loaded.
    "-fno-semantic-interposition",
    "-Wl,-Bsymbolic",
    # A product and a sum are rounded one after the other, so every processor gives the same bits.
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
)

# No names of the directories where a package was built: the same text gives the same bytes.
_FOR_PACKAGES = ("-s", "-ffile-prefix-map=/=")

_ELF_ONLY = frozenset({"-fno-semantic-interposition", "-Wl,-Bsymbolic"})

PREBUILT = Path(__file__).parent / "prebuilt"
_FLAGS_VARIABLE = "P4REDUCE_CFLAGS"  # more options, say for a sanitizer
# So that a hang ends. Zig's first call on a machine compiles parts of its own libraries, and a busy
# machine takes ten times as long as a quiet one.
_COMPILE_TIMEOUT_S = 180.0
_TEXT_SUFFIXES = frozenset({".h", ".c", ".inc"})
_PREBUILD_TIMEOUT_S = 600.0
_MESSAGE_CHARACTERS = 2000


def compile_shared(
    stem: str,
    sources: Sources,
    *,
    include: Sequence[Path] = (),
    flags: Sequence[str] = (),
    anywhere: bool = False,
) -> Path:
    """Return the shared object of C sources, from the package, the cache, or compiled now.

    Args:
        stem: the beginning of the file's name.
        sources: those that end in .c are compiled; others can be included.
        include: directories of headers. What is in them is part of the key.
        flags: more options for the compiler.
        anywhere: whether it is C for any system.

    Raises:
        CompilerMissingError: it is in no cache and there is no compiler.
        CompileError: the compiler did not accept it; with its messages.
        NativeUnavailableError: this is no Linux, or the cache cannot be used safely.
    """
    if not anywhere and sys.platform != "linux":
        raise NativeUnavailableError(
            f"machine code is for Linux, and this is {sys.platform}: Python does the same"
        )
    if not re.fullmatch(r"[A-Za-z0-9_]+", stem):
        raise ValueError(f"'{stem}' is not a name for a compiled file: letters, digits, _")
    flags = (*flags, *shlex.split(os.environ.get(_FLAGS_VARIABLE, "")))
    key = _key(sources, include, flags)
    level = cpu_level()
    for prebuilt_level in levels_below(level):
        prebuilt = PREBUILT / f"{_name(stem, prebuilt_level, key)}.so"
        if is_whole(prebuilt):
            return prebuilt
    cache = Cache(cache_directory())
    name = _name(stem, level, key)
    try:
        compiler = find_compiler()
    except CompilerMissingError as error:
        found = cache.find_any(f"{name}-")
        if found is None:
            raise CompilerMissingError(f"{stem} has to be compiled, and {error}") from None
        return found
    full_name = f"{name}-{_digest([compiler.identity])[:12]}"
    # Without the lock first: others who compile something else may hold it for a minute.
    looked = cache.look(full_name)
    if looked is not None:
        return looked
    with cache.lock(full_name, _COMPILE_TIMEOUT_S):
        found = cache.find(full_name)
        if found is not None:
            return found
        cache.clear_abandoned()
        with tempfile.TemporaryDirectory(prefix=BUILDING, dir=cache.directory) as directory:
            built = Path(directory) / "built.so"
            zig_cache = cache.directory / "zig"
            _compile(compiler, level, stem, sources, include, flags, built, zig_cache)
            return cache.put(full_name, built)


def prebuild(
    directory: Path,
    stem: str,
    sources: Sources,
    *,
    compiler: Compiler,
    machine: str,
    include: Sequence[Path] = (),
    flags: Sequence[str] = (),
) -> list[Path]:
    """Compile into a package that is being built, for every level of a machine's processors.

    Args:
        machine: as `platform.machine` names it on the machines that will use the package.

    Returns what was written. Raises as `compile_shared`.
    """
    key = _key(sources, include, flags)
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for level in cpu_levels(machine):
        path = directory / f"{_name(stem, level, key)}.so"
        _compile(
            compiler,
            level,
            stem,
            sources,
            include,
            (*flags, *_FOR_PACKAGES),
            path,
            directory / "zig",
            timeout_s=_PREBUILD_TIMEOUT_S,
        )
        written += [path, write_digest(path)]
    return written


def _name(stem: str, level: str, key: str) -> str:
    return f"{stem}-{level}-{key[:32]}"


def _key(sources: Sources, include: Sequence[Path], flags: Sequence[str]) -> str:
    """Of everything that decides what the file does, but for compiler and processor."""
    return _digest(
        [
            *BASE_FLAGS,
            *flags,
            *(part for name, text in _texts(sources) for part in (name, text)),
            *(part for directory in include for part in _directory_texts(directory)),
        ]
    )


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


def _texts(sources: Sources) -> Iterator[tuple[str, str]]:
    if isinstance(sources, Mapping):
        for name, text in sources.items():
            if not re.fullmatch(r"[A-Za-z0-9_]+\.[a-z]+", name):
                raise ValueError(f"'{name}' is not a name for a source file")
            yield name, text
    else:
        yield from ((path.name, path.read_text("utf-8")) for path in sources)


def _directory_texts(directory: Path) -> Iterator[str]:
    for path in sorted(directory.rglob("*")):
        if path.suffix in _TEXT_SUFFIXES:
            yield str(path.relative_to(directory))
            yield path.read_text("utf-8")


def _compile(
    compiler: Compiler,
    level: str,
    stem: str,
    sources: Sources,
    include: Sequence[Path],
    flags: Sequence[str],
    output: Path,
    zig_cache: Path,
    timeout_s: float = _COMPILE_TIMEOUT_S,
) -> None:
    with tempfile.TemporaryDirectory(prefix="p4reduce-") as work:
        if isinstance(sources, Mapping):
            for name, text in sources.items():
                (Path(work) / name).write_text(text, "utf-8")
            files = [str(Path(work) / name) for name in sources if name.endswith(".c")]
        else:
            files = [str(path) for path in sources if path.suffix == ".c"]
        command = [
            *compiler.command,
            *(flag for flag in BASE_FLAGS if flag not in _ELF_ONLY or sys.platform == "linux"),
            *compiler.machine_flags(level),
            *(f"-I{directory}" for directory in include),
            *flags,
            "-o",
            str(output),
            *files,
            "-lm",
        ]
        _run(command, stem, zig_cache, timeout_s)


def _run(command: Sequence[str], stem: str, zig_cache: Path, timeout_s: float) -> None:
    environment = {
        **os.environ,
        "ZIG_GLOBAL_CACHE_DIR": str(zig_cache),
        "ZIG_LOCAL_CACHE_DIR": str(zig_cache),
        "LC_ALL": "C",
    }
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CompileError(
            f"{command[0]} did not compile {stem} within {timeout_s:.0f} s"
        ) from None
    except OSError as error:
        raise CompileError(f"cannot run {command[0]}: {error.strerror or error}") from None
    if done.returncode != 0:
        raise CompileError(
            f"{command[0]} could not compile {stem} (exit code {done.returncode}): "
            f"{_first_complaint(done.stderr)}",
            done.stderr[-_MESSAGE_CHARACTERS:],
        )


def _first_complaint(stderr: str) -> str:
    lines = stderr.splitlines()
    for mark in ("error: ", "multiple definition", "undefined reference"):
        # A failed link ends in a line that only says so.
        found = [line for line in lines if mark in line and not line.startswith("collect2")]
        if found:
            break
    else:
        found = lines
    if not found:
        return "it said nothing"
    if ".h: No such file" in found[0] or ".h' file not found" in found[0]:
        return f"{found[0]}; are the C library's headers missing? {HOW_TO_GET_A_COMPILER}"
    return found[0]
