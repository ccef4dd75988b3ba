# SPDX-License-Identifier: Apache-2.0
"""Compiles p4reduce's machine code into this user's cache, so that the first start need not.

    python tools/compile_native.py

Without a compiler it says how to get one, and p4reduce runs in Python.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from p4reduce_lab.progress import waiting
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import runtime
from p4reduce_switch.codegen_c import NotNativeError
from p4reduce_switch.native_pipeline import NativePipeline

PROGRAM = Path(__file__).resolve().parent.parent / "p4src" / "compiled" / "p4reduce.json"


def main() -> None:
    try:
        with waiting("compiling the library, in C"):
            runtime()
        with waiting("compiling the P4 program, by C"):
            NativePipeline(PROGRAM.read_bytes())
    except (NativeUnavailableError, NotNativeError) as error:
        print(f"p4reduce will run in Python, many times slower: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # the cache has nothing that is half done


if __name__ == "__main__":
    main()
