# SPDX-License-Identifier: Apache-2.0
"""A callback for Lightning that registers a communication hook.

Lightning's own `DDPStrategy(ddp_comm_hook=…)` does nothing on the CPU.
"""

from __future__ import annotations

import sys
from typing import Any

from p4reduce.torch.hooks.named import check_name, register

# Both packages have the same classes, and a Trainer takes those of its own only.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


class Hook(Callback):
    """Registers a hook on the model that `DDPStrategy` has wrapped, before the first step.

    Args:
        name: a hook of `p4reduce.torch.hooks` without `_hook`: "int8".
        options: of `HookState`: `error_feedback=True`.

    Raises:
        ValueError: there is no such hook.
    """

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        check_name(name)
        self._name, self._options = name, options

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Register the hook. Raises as `p4reduce.torch.hooks.named.register`."""
        register(trainer.strategy.model, self._name, self._options)
