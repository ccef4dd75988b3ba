# SPDX-License-Identifier: Apache-2.0
"""Ray Train with PyTorch, whose sums the switch computes.

    from p4reduce.ray import P4ReduceConfig

    trainer = ray.train.torch.TorchTrainer(train, torch_config=P4ReduceConfig(), …)

The workers start switch and controller on their hosts. `train` is called by Ray Train, `reporting`
reports a step's figures. Imports `torch` and the communicator.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p4reduce.ray.reporting import report
    from p4reduce.ray.train import P4ReduceConfig

__all__ = ["P4ReduceConfig", "report"]


def __getattr__(name: str) -> object:
    if name == "P4ReduceConfig":
        from p4reduce.ray.train import P4ReduceConfig

        return P4ReduceConfig
    if name == "report":
        from p4reduce.ray.reporting import report

        return report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
