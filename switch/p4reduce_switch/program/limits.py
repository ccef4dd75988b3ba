# SPDX-License-Identifier: Apache-2.0
"""Limits of a program's size: far above any real program, and within what a switch can handle.

The loader refuses larger ones, so a hostile program can exhaust neither the switch's memory nor its
time.
"""

from __future__ import annotations

MAX_WIDTH = 1 << 16
"""Bits of a field, a parameter, a constant or a cell of a register."""
MAX_HEADER_BITS = 1 << 19
MAX_ENTRIES = 1 << 24
"""Of a table, an action profile or a value set."""
MAX_STATE_BYTES = 256 << 20
"""Of all counters, registers and meters together."""
MAX_STACK = 256
"""Elements of a header stack."""
MOST_VARBITS = (1 << 31) - 1
"""That a varbit field is extracted with: BMv2 has an int for it."""
MAX_DEPTH = 200
"""Operations within each other, and nested conditionals in an action."""
MAX_PARTS = 1 << 14
"""Of an expression with a header stack's element at an index known only at run time."""
MAX_ITERATIONS = 1 << 16
"""How often an action may jump back, each time that it is run; then its frame is dropped."""
MAX_VALUE_BITS = 1 << 18
"""Of what is computed on the way; it is cut to a width only when it is assigned."""
MAX_HEADER_GROWTH = 512
"""Bytes of headers that a packet may gain: BMv2 keeps this much room in front, and dies of more."""
