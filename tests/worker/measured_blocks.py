# SPDX-License-Identifier: Apache-2.0
"""What a rank finds in the blocks of a source."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from p4reduce.tensors.blocks import BlockSource
from p4reduce.tensors.measure import BlockTables


def measured(source: BlockSource) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return each block's exponent, and whether it is not all zeros."""
    tables = BlockTables(len(source))
    source.measure(tables)
    return tables.exponents[:-1], tables.nonzero
