# SPDX-License-Identifier: Apache-2.0
"""Hooks by name, for callbacks of frameworks that wrap the model themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from p4reduce.torch import hooks

HOOKS: dict[str, Callable[..., Any]] = {
    name.removesuffix("_hook"): getattr(hooks, name)
    for name in hooks.__all__
    if name.endswith("_hook")
}
"""Without the `_hook` of their functions."""


def check_name(name: str) -> None:
    """Raise ValueError unless a hook has this name."""
    if name not in HOOKS:
        raise ValueError(f"hook {name!r} is not one of {', '.join(HOOKS)}")


def register(model: Any, name: str, options: dict[str, Any]) -> None:
    """Register a hook on a model that a framework has wrapped.

    Args:
        model: what the framework trains.
        name: of `HOOKS`; see `check_name`.
        options: of `HookState`.

    Raises:
        TypeError: the model is not wrapped in DistributedDataParallel, or has no such option.
        ValueError: an option is wrong.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"the hook {name!r} needs a model that is wrapped in DistributedDataParallel, not "
            f"{type(model).__name__}: train on several ranks, with DDP"
        )
    model.register_comm_hook(hooks.HookState(**options), HOOKS[name])
