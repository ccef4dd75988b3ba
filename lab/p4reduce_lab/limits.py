# SPDX-License-Identifier: Apache-2.0
"""What one machine is asked for at most."""

from __future__ import annotations

MAX_RANKS = 64
"""Processes of one job that the lab starts."""
