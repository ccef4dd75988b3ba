# SPDX-License-Identifier: Apache-2.0
"""The commands of `p4reduce-lab`, one module each.

Each module's `command` is a click command with the module's name, with hyphens. To add one, add a
module. A command imports what it needs in its function, so that no other one waits for it. Imports
all other folders.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import click

__all__ = ["find"]


def find() -> Iterator[tuple[str, click.Command]]:
    """Yield the name and the command of each module of this folder."""
    for module in pkgutil.iter_modules(__path__):
        found = importlib.import_module(f"{__name__}.{module.name}")
        yield module.name.replace("_", "-"), found.command
