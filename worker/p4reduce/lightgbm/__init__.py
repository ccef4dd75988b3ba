# SPDX-License-Identifier: Apache-2.0
"""LightGBM's data-parallel training, whose histograms the switch sums.

    import lightgbm
    from p4reduce.lightgbm import network

    with network(comm) as parameters:
        booster = lightgbm.train(
            {**parameters, "objective": "binary", "use_quantized_grad": True},
            lightgbm.Dataset(my_samples, my_targets),
        )

`context` has `network`, `served` LightGBM's collective functions, `packed` the sums of histograms
of integers. `signals` lets handlers of signals wait while a callback runs. Imports the collectives.
"""

from p4reduce.lightgbm.context import network

__all__ = ["network"]
