# SPDX-License-Identifier: Apache-2.0
"""The installed commands. Each names the extra that it needs if a package is missing.

The base distribution is the worker library, so it installs beside anything. It includes the
commands, but not the packages that they need.
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
    "sklearn": "demo",
    "matplotlib": "demo",
    "torch": "torch",
    "p4runtime_sh": "shell",
    "IPython": "shell",
}


def switch() -> NoReturn:
    """Run `p4reduce-switch`."""
    _run("p4reduce-switch", "switch", "p4reduce_switch.cli")


def simple_switch_grpc() -> NoReturn:
    """Run `p4reduce-simple-switch-grpc`."""
    _run("p4reduce-simple-switch-grpc", "switch", "p4reduce_switch.simple_switch.cli")


def controller() -> NoReturn:
    """Run `p4reduce-controller`."""
    _run("p4reduce-controller", "controller", "p4reduce_controller.cli.command_line")


def lab() -> NoReturn:
    """Run `p4reduce-lab`."""
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
