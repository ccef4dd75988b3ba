# SPDX-License-Identifier: Apache-2.0
"""LAG beside gradient descent: ranks upload only what has changed enough.

p4reduce-lab exec -n 16 -- python examples/methods/lag.py
"""

from __future__ import annotations

import p4reduce
from curves import Curves, options
from p4reduce.methods.gd import gd
from p4reduce.methods.lag import lag_ps, lag_wk


def main() -> None:
    """Compares the blocks that ranks send until the gap is 1e-4."""
    given = options(str(__doc__), steps=200_000)
    with p4reduce.init() as comm:
        curves = Curves(comm, given.seed)
        common = {"rate": curves.rate, "steps": given.steps}
        curves.run("gd", gd, **common)
        curves.run("lag-wk", lag_wk, **common)
        curves.run("lag-wk, int8", lag_wk, precision="int8", **common)
        curves.run("lag-ps", lag_ps, **common)
        curves.run("lag-ps, ξ=1", lag_ps, xi=1.0, **common)
        if comm.size >= 16:  # with fewer ranks the model diverges
            curves.run("lag-ps, ξ=30", lag_ps, xi=30.0, **common)
        if given.picture:
            curves.draw("LAG on the synthetic linear task", given.picture)


if __name__ == "__main__":
    main()
