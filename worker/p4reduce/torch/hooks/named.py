# SPDX-License-Identifier: Apache-2.0
"""Hooks by name, for callbacks of frameworks that wrap the model themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from p4reduce.torch.hooks.compressed import cat_hook, compressed_hook, topk_hook
from p4reduce.torch.hooks.dense import allreduce_hook, int4_hook, int8_hook, int16_hook
from p4reduce.torch.hooks.elements import elements_hook
from p4reduce.torch.hooks.hierarchical import hierarchical_hook
from p4reduce.torch.hooks.late import deadline_hook
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.hooks.votes import majority_hook, onebit_hook

HOOKS: dict[str, Callable[..., Any]] = {
    "allreduce": allreduce_hook,
    "cat": cat_hook,
    "compressed": compressed_hook,
    "deadline": deadline_hook,
    "elements": elements_hook,
    "hierarchical": hierarchical_hook,
    "int4": int4_hook,
    "int8": int8_hook,
    "int16": int16_hook,
    "majority": majority_hook,
    "onebit": onebit_hook,
    "topk": topk_hook,
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
        name: of `HOOKS`.
        options: of `HookState`.

    Raises:
        TypeError: the model is not wrapped in DistributedDataParallel, or has no such option.
        ValueError: there is no such hook, or an option is wrong.
    """
    check_name(name)
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"the hook {name!r} needs a model that is wrapped in DistributedDataParallel, not "
            f"{type(model).__name__}: train on several ranks, with DDP"
        )
    model.register_comm_hook(HookState(**options), HOOKS[name])
