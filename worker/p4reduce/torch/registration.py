# SPDX-License-Identifier: Apache-2.0
"""What torch calls at its import, by the entry point `torch.backends`: it learns the name.

Nothing heavy is imported here, as every program that imports torch passes through; the rest is
loaded when a process group of this backend is made.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

from p4reduce.torch import gloo_default, monitored, rendezvous
from p4reduce.torch.names import NAME
from p4reduce.variables import CONTROLLER, INTERFACE

_BACKEND = "p4reduce.torch.backend"


def autoload() -> None:
    """Register "p4reduce" with `init_process_group`. Idempotent."""
    import torch.distributed as dist

    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
        rendezvous.install()
        monitored.install()
        gloo_default.install()


def _create(options: Any, backend_options: Any) -> Any:
    named = any(map(os.environ.get, (CONTROLLER, INTERFACE)))
    if options.group_size > 1 and not named and _BACKEND not in sys.modules:
        from p4reduce.launch import prepare

        prepare()  # it starts while the rest is imported
    with _no_collection():
        from p4reduce.torch.backend import create

    return create(options, backend_options)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage during an import: modules stay.

    Beside torch's own objects a collection takes as long as the import itself.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
