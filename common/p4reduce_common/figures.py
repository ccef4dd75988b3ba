# SPDX-License-Identifier: Apache-2.0
"""Figures for people."""

from __future__ import annotations


def three_digits(value: float) -> str:
    """Return a number with three digits, and from 1,000 on as a whole one: 1,800, not 1.8e+03."""
    # 999.5 has four digits when it is rounded to a whole number.
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
