# SPDX-License-Identifier: Apache-2.0
"""The rate of HELLOs to the controller.

It is not in `layout`, because the command line needs these numbers for its options. Importing
P4Runtime would take a third of most commands' time.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HelloLimit"]


@dataclass(frozen=True)
class HelloLimit:
    """How many HELLOs per second each port of the switch may send to the controller."""

    rate: int = 200  # a second
    burst: int = 64  # a switch has up to 64 ranks of a job, and all may come by one port at once
