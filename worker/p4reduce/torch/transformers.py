# SPDX-License-Identifier: Apache-2.0
"""A callback for Transformers' Trainer that registers a communication hook."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from p4reduce.torch.hooks.named import check_name, register


class Hook(TrainerCallback):
    """Registers a hook before the first step: `trainer.add_callback(Hook(trainer, "int8"))`.

    Args:
        trainer: the one that trains. A callback gets the model without DistributedDataParallel.
        name: a hook of `p4reduce.torch.hooks` without `_hook`: "int8".
        options: of `HookState`: `error_feedback=True`.

    Raises:
        ValueError: there is no such hook.
    """

    def __init__(self, trainer: Any, name: str, **options: Any) -> None:
        check_name(name)
        self._trainer, self._name, self._options = trainer, name, options

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Register the hook. Raises as `p4reduce.torch.hooks.named.register`."""
        register(self._trainer.model_wrapped, self._name, self._options)
