# SPDX-License-Identifier: Apache-2.0
"""GADMM and D-GADMM: each rank hears the sum of its two neighbours.

p4reduce-lab exec -n 8 -- python examples/methods/gadmm.py
"""

from __future__ import annotations

import p4reduce
from curves import Curves, options
from p4reduce.methods.admm import admm
from p4reduce.methods.gadmm import dgadmm, gadmm


def main() -> None:
    """Compares a chain that stays with one that is drawn again, and with the star."""
    given = options(str(__doc__), rho=5.0, period=15, steps=5000)
    with p4reduce.init() as comm:
        curves = Curves(comm, given.seed)
        common = {"rho": given.rho, "steps": given.steps}
        curves.run("gadmm", gadmm, **common)
        curves.run(
            f"dgadmm, τ={given.period}", dgadmm, period=given.period, seed=given.seed, **common
        )
        curves.run("dgadmm, τ=1", dgadmm, period=1, seed=given.seed, **common)
        curves.run("admm", admm, **common)
        if given.picture:
            curves.draw("GADMM on the synthetic linear task", given.picture)


if __name__ == "__main__":
    main()
