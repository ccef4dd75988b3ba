# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the lab's tests."""

from __future__ import annotations

from launched import nothing_left

__all__ = ["nothing_left"]
