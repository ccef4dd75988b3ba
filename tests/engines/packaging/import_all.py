# SPDX-License-Identifier: Apache-2.0
"""A program: imports every module of the distribution. For test_pythons.py."""

from __future__ import annotations

import importlib
import pkgutil

PACKAGES = (
    "p4reduce",
    "p4reduce_common",
    "p4reduce_controller",
    "p4reduce_lab",
    "p4reduce_native",
    "p4reduce_switch",
)
# What extras bring that are not installed beside.
OPTIONAL = {
    "lightning",
    "matplotlib",
    "mpi4py",
    "opentelemetry",
    "pyspark",
    "pytest",
    "ray",
    "sklearn",
    "torch",
    "transformers",
}


def imported(name: str) -> int:
    """Import a module and those in it; how many there are. Raises what is wrong with one."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").split(".")[0] in OPTIONAL:
            return 0
        raise
    inside = pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}.")
    return 1 + sum(imported(one.name) for one in inside if not one.name.endswith("__main__"))


if __name__ == "__main__":
    print("imported", sum(imported(package) for package in PACKAGES))
