# SPDX-License-Identifier: Apache-2.0
"""Ray programs whose sums the switch computes: Ray Train with PyTorch, and Ray's collectives.

    from p4reduce.ray import P4ReduceConfig

    trainer = ray.train.torch.TorchTrainer(train, torch_config=P4ReduceConfig(), …)

The workers start switch and controller on their hosts. `train` is called by Ray Train, `reporting`
reports a step's figures. `collective` is a backend of `ray.util.collective`, and `joining` brings
its groups together. Imports `torch` and the communicator.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p4reduce.ray.collective import P4ReduceGroup, register
    from p4reduce.ray.reporting import report
    from p4reduce.ray.train import P4ReduceConfig

__all__ = ["P4ReduceConfig", "P4ReduceGroup", "register", "report"]


def __getattr__(name: str) -> object:
    # Actors that sum numpy arrays need no torch.
    if name in ("P4ReduceGroup", "register"):
        from p4reduce.ray import collective

        return getattr(collective, name)
    if name == "P4ReduceConfig":
        from p4reduce.ray.train import P4ReduceConfig

        return P4ReduceConfig
    if name == "report":
        from p4reduce.ray.reporting import report

        return report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
