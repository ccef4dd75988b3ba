# SPDX-License-Identifier: Apache-2.0
"""Consensus ADMM for several ρ: the switch is the middle of a star.

p4reduce-lab exec -n 8 -- python examples/methods/admm.py
"""

from __future__ import annotations

import p4reduce
from curves import Curves, options
from p4reduce.methods.admm import admm


def main() -> None:
    """Compares ρ by iterations and bytes until the gap is 1e-4."""
    given = options(str(__doc__), steps=5000)
    with p4reduce.init() as comm:
        curves = Curves(comm, given.seed)
        for rho in (1.0, 3.0, 5.0, 10.0):
            curves.run(f"admm, ρ={rho:g}", admm, rho=rho, steps=given.steps)
        if given.picture:
            curves.draw("Consensus ADMM on the synthetic linear task", given.picture)


if __name__ == "__main__":
    main()
