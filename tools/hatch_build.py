# SPDX-License-Identifier: Apache-2.0
"""Compiles p4reduce's machine code into a wheel, when one is built.

The runtime library and p4reduce's own program go into `p4reduce_native/prebuilt`, so whoever
installs the wheel needs no compiler for them. They are loaded by ctypes and do not know Python's
API: one wheel per architecture serves every Python. Without a compiler the wheel is a pure one,
which compiles when it is used, or runs in Python. An editable install compiles when it is used.

Man pages and completions for shells are taken along where tools/build_dist.py has made them.

With P4REDUCE_WHEEL_FOR=x86_64 or aarch64 in the environment the `ziglang` wheel compiles for that
machine and an old C library, whatever machine this is, and the tag is a manylinux one.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent.parent
SHARE = "packaging/share"
PROGRAM = "p4src/compiled/p4reduce.json"
TARGET_VARIABLE = "P4REDUCE_WHEEL_FOR"
GLIBC = "2.28"


class NativeBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Called by hatchling for `[tool.hatch.build.targets.wheel.hooks.custom]`."""

    def dependencies(self) -> list[str]:
        return ["ziglang>=0.13"] if TARGET_VARIABLE in os.environ else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        if (ROOT / SHARE).is_dir():
            build_data["shared_data"][SHARE] = "share"
        sys.path[:0] = [str(ROOT / part) for part in ("native", "switch", "common")]
        from p4reduce_native.errors import NativeUnavailableError

        self._built = tempfile.TemporaryDirectory()
        try:
            files, tag = _compile(Path(self._built.name))
        except NativeUnavailableError as error:
            if TARGET_VARIABLE in os.environ:
                raise
            self.app.display_warning(f"a wheel without machine code: {error}")
            return
        for path in files:
            build_data["force_include"][str(path)] = f"p4reduce_native/prebuilt/{path.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._built.cleanup()


def _compile(directory: Path) -> tuple[list[Path], str]:
    """Everything that runs in every installation, and the platform that it runs on."""
    from p4reduce_native.compile import prebuild
    from p4reduce_native.compiler import find_compiler, zig_for
    from p4reduce_native.library import CSRC, runtime_sources
    from p4reduce_switch.codegen_c.generate import generate
    from p4reduce_switch.loader.load_program import load
    from p4reduce_switch.native.program import INCLUDE, sources_of

    machine = os.environ.get(TARGET_VARIABLE)
    if machine is not None:
        compiler = zig_for(machine, GLIBC)
        tag = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    else:
        compiler, machine = find_compiler(), platform.machine()
        tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    program = generate(load((ROOT / PROGRAM).read_bytes()))
    build = partial(prebuild, directory, compiler=compiler, machine=machine)
    files = [
        *build("runtime", runtime_sources(), include=[CSRC]),
        *build("program", sources_of(program.source), include=INCLUDE),
    ]
    return files, tag
