# SPDX-License-Identifier: Apache-2.0
"""Numbers with units."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from p4reduce_lab import units


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (units.bits_per_second, "1Gbit", 1e9),
        (units.bits_per_second, "100 Mbit/s", 1e8),
        (units.bits_per_second, "25Gbit", 25e9),
        (units.bits_per_second, "1e6bit", 1e6),
        (units.bits_per_second, "2.5 gbit/s", 2.5e9),
        (units.seconds, "120ms", 0.12),
        (units.seconds, "10us", 1e-5),
        (units.seconds, "10 µs", 1e-5),
        (units.seconds, "1.5s", 1.5),
        (units.octets, "25MB", 25e6),
        (units.octets, "4 kB", 4000),
        (units.octets, "512", 512),
        (units.octets, "25MiB", 25 << 20),
        (units.octets, "1 KiB", 1024),
        (units.count, "25e6", 25_000_000),
        (units.count, "1.5M", 1_500_000),
        (units.count, "2.01M", 2_010_000),  # not quite whole in binary
        (units.count, "1.07G", 1_070_000_000),
    ],
)
def test_what_people_write(read: Callable[[str], float], text: str, value: float) -> None:
    assert read(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (units.bits_per_second, "fast"),
        (units.bits_per_second, "1Gfoo"),
        (units.bits_per_second, ""),
        (units.bits_per_second, "-1G"),
        (units.seconds, "12"),
        (units.seconds, "1.2.3s"),
        (units.seconds, "3h"),
        (units.count, "1.5"),
        (units.count, "nan"),
        (units.octets, "1e999"),
        (units.octets, "25Mi"),
        (units.octets, "25MiiB"),
    ],
)
def test_what_is_no_number_is_named(read: Callable[[str], float], text: str) -> None:
    with pytest.raises(ValueError, match=repr(text).replace(".", r"\.")):
        read(text)


def test_words() -> None:
    assert units.in_words(0.12) == "120 ms"
    assert units.in_words(6.691e-5) == "66.9 µs"
    assert units.in_words(1234.5) == "1,234 s"
    assert units.in_words(float("inf")) == "never"
    assert units.in_words(0) == "0 s"
    assert units.size_in_words(187e6) == "187 MB"
    assert units.size_in_words(78) == "78 B"
    assert units.rate_in_words(2.5e9) == "2.5 Gbit/s"


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (units.in_words, 999.7, "1,000 s"),
        (units.in_words, 999.4, "999 s"),
        (units.size_in_words, 999.7e9, "1,000 GB"),
        (units.size_in_words, 999.4e9, "999 GB"),
    ],
)
def test_a_thousand_has_no_exponent(write: Callable[[float], str], value: float, text: str) -> None:
    assert write(value) == text
