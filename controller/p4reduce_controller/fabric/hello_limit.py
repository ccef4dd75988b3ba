# SPDX-License-Identifier: Apache-2.0
"""How many HELLOs come to the controller.

Apart from `layout`, since the command line has these numbers among its options, and most of its
commands need nothing of P4Runtime, which takes a third of their time to import.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HelloLimit"]


@dataclass(frozen=True)
class HelloLimit:
    """How many HELLOs the switch lets each of its ports send to the controller."""

    rate: int = 200  # a second
    burst: int = 64  # as many ranks as a job can have may come by one port at once
