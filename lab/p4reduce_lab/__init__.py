# SPDX-License-Identifier: Apache-2.0
"""Starts everything on one machine: the demo, the user's commands, networks, switches.

`commands` has the commands, `choice` decides which switch and which network a run takes; `system`
starts switches and their controller, and `tree` a tree of them, out of `switches`, `networks` and
`processes`. `deploy` starts a network for workers of any launcher, `local_network` one for this
process, and `pytest_plugin` makes a fixture of it. On top is a module or folder for each command:
`demo` and `torch_demo` (`make run`), `execute`, `up`, `lab`, `compare`, `planning` (`plan`).
`measured` keeps what was measured, `plots` has the look of pictures. It may import all packages.
Only bench/ and experiments/ import it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p4reduce_lab.local_network import LocalNetwork, local

__all__ = ["LocalNetwork", "local"]


def __getattr__(name: str) -> object:
    # When it is asked for: the command line should not have to wait for numpy.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.local_network"), name)
