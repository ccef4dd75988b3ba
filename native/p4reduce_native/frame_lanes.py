# SPDX-License-Identifier: Apache-2.0
"""How many lanes of 32 bits are in a frame: one number for a process and all that it talks to.

BMv2's program sums 256, and hardware such as Tofino 2 sums 64 (docs/tofino.md). The machine code is
compiled for one of them, so the number is read when this is imported.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["FRAME_LANES", "PROBLEM", "SUMS_WORDS", "VARIABLE"]

VARIABLE: Final = "P4REDUCE_LANES"
_GIVEN = os.environ.get(VARIABLE, "") or "256"
_IS_KNOWN = _GIVEN in ("64", "256")

FRAME_LANES: Final = int(_GIVEN) if _IS_KNOWN else 256
SUMS_WORDS: Final = FRAME_LANES == 64
"""Whether the switch sums words of 32 bits and nothing else, as hardware does.

Then narrower lanes travel as signed sums: each word is the sum of q * 2^(bits * place), of which an
addition needs no masks. And ranks set OVERFLOW, where a lane is beyond what n ranks can add up.
"""
PROBLEM: Final = "" if _IS_KNOWN else f"{VARIABLE}={_GIVEN}: a frame has 64 lanes or 256"
"""What is wrong with the environment's number, for commands and `p4reduce.init`; or empty."""
