# SPDX-License-Identifier: Apache-2.0
"""The commands as they are installed: each says which extra it needs where a package is missing.

The distribution's base is the worker library, so that it installs beside anything; the commands are
there all the same, and `pip install p4reduce` alone has not what they need.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NoReturn

__all__ = ["controller", "lab", "simple_switch_grpc", "switch"]

# What is imported under which name, and the extra of p4reduce that brings it.
_EXTRAS = {
    "p4": "switch",
    "google.rpc": "switch",
    "p4runtime_sh": "controller",
    "sklearn": "demo",
    "matplotlib": "demo",
    "torch": "torch",
}


def switch() -> NoReturn:
    """`p4reduce-switch`."""
    _run("p4reduce-switch", "switch", "p4reduce_switch.cli")


def simple_switch_grpc() -> NoReturn:
    """`p4reduce-simple-switch-grpc`."""
    _run("p4reduce-simple-switch-grpc", "switch", "p4reduce_switch.simple_switch.cli")


def controller() -> NoReturn:
    """`p4reduce-controller`."""
    _run("p4reduce-controller", "controller", "p4reduce_controller.cli.command_line")


def lab() -> NoReturn:
    """`p4reduce-lab`."""
    _run("p4reduce-lab", "lab", "p4reduce_lab.cli")


def _run(command: str, extra: str, module: str) -> NoReturn:
    # By name, since this package may not know those that it starts.
    try:
        import_module(module).main()
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.startswith("p4reduce"):
            raise  # a fault of p4reduce, not of the installation
        needs = next((of for name, of in _EXTRAS.items() if _within(missing, name)), extra)
        print(
            f"{command} needs the package '{missing}', which is not installed here: "
            f"pip install 'p4reduce[{needs}]'",
            file=sys.stderr,
        )
        sys.exit(1)
    sys.exit(0)


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
