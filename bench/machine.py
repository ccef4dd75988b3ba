# SPDX-License-Identifier: Apache-2.0
"""What a measurement was made on, to be kept beside it: see `p4reduce_lab.measured.machine`."""

from __future__ import annotations

from p4reduce_lab.measured.machine import describe, machine

__all__ = ["describe", "machine"]
