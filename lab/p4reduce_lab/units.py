# SPDX-License-Identifier: Apache-2.0
"""Numbers with units, as people write them: 1Gbit, 120ms, 25MB, 25e6."""

from __future__ import annotations

import math
import re

from p4reduce_common.figures import three_digits

_NUMBER = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-zµ/]*)", re.IGNORECASE)
_RATE = "a rate such as 1Gbit or 100Mbit"
_BINARY = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0}


def bits_per_second(text: str) -> float:
    """Parse bits per second: "1Gbit", "100 Mbit/s". The unit is required."""
    number, unit = _split(text, _RATE)
    unit = unit.lower().removesuffix("/s")
    if not unit.endswith("bit"):
        raise ValueError(f"{text!r} is not {_RATE}")
    return _scaled(number, unit.removesuffix("bit"), text, _RATE)


def seconds(text: str) -> float:
    """Parse seconds: "120ms", "10us", "1.5s". The unit is required."""
    number, unit = _split(text, "a time such as 120ms or 10us")
    if unit.lower() not in _SECONDS:
        raise ValueError(f"{text!r} is not a time such as 120ms or 10us")
    return number * _SECONDS[unit.lower()]


def octets(text: str) -> float:
    """Parse bytes: "25MB", "25MiB", "4 kB", "1e6". A kB has 1,000 bytes, a KiB 1,024."""
    number, unit = _split(text, "a size such as 25MB")
    prefix = unit.lower().removesuffix("b")
    if prefix in _BINARY and unit.lower().endswith("b"):
        return number * _BINARY[prefix]
    return _scaled(number, prefix, text, "a size such as 25MB")


def count(text: str) -> int:
    """Parse a whole number: "25e6", "25M", "1000"."""
    number, unit = _split(text, "a number such as 25e6 or 25M")
    value = _scaled(number, unit.lower(), text, "a number such as 25e6 or 25M")
    if not math.isclose(value, round(value), rel_tol=1e-12):  # 2.01M in binary is not quite whole
        raise ValueError(f"{text!r} is {value}, which is not a whole number")
    return round(value)


def in_words(value: float) -> str:
    """Return seconds with three digits and a fitting unit."""
    if math.isinf(value):
        return "never"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size * 0.9995:
            return f"{three_digits(value / size)} {unit}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"


def size_in_words(value: float) -> str:
    """Return bytes with three digits and a fitting unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size * 0.9995:
            return f"{three_digits(value / size)} {unit}"
    return f"{value:.0f} B"


def rate_in_words(value: float) -> str:
    """Return bits per second in a form that `bits_per_second` reads."""
    for unit, size in (("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}/s"
    return f"{value:.4g} bit/s"


def rate_as_typed(value: float) -> str:
    """Return bits per second as on a command line: "100Mbit"."""
    return rate_in_words(value).replace(" ", "").removesuffix("/s")


def _split(text: str, wanted: str) -> tuple[float, str]:
    found = _NUMBER.fullmatch(text.strip())
    try:
        number = float(found[1]) if found else math.nan
    except ValueError:
        number = math.nan
    if not found or not math.isfinite(number):
        raise ValueError(f"{text!r} is not {wanted}")
    return number, found[2]


def _scaled(number: float, prefix: str, text: str, wanted: str) -> float:
    if prefix not in _PREFIXES:
        raise ValueError(f"{text!r} is not {wanted}")
    return number * _PREFIXES[prefix]
