# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that are numbers, names or switches.

TypeError and ValueError name the argument and its value.
"""

from __future__ import annotations

import math
import operator
import sys
import threading
from collections.abc import Mapping
from numbers import Real
from typing import Any

LONGEST_DEADLINE = 2147
"""Seconds: ranks tell each other microseconds in 32 bits."""


def whole_number(argument: str, value: Any, needed: str = "an integer is needed") -> int:
    """Return an integer of any integer type except bool. Raises TypeError."""
    cause = None
    if isinstance(value, int) and not isinstance(value, bool):
        return operator.index(value)
    if not is_flag(value):
        try:
            return operator.index(value)
        except Exception as error:  # also of the type's own code
            cause = error
    raise TypeError(f"{argument}={value!r}: {needed}") from _unless_plain(cause)


def listed(argument: str, values: Any, needed: str = "a sequence is needed") -> list[Any]:
    """Return the elements of any iterable except text. Raises TypeError."""
    cause = None
    if type(values) in (list, tuple):
        return list(values)
    if not isinstance(values, (str, bytes)):
        try:
            return list(values)
        except Exception as error:  # also of the type's own code
            cause = error
    raise TypeError(f"{argument}={values!r}: {needed}") from _unless_plain(cause)


def number_within(argument: str, value: Any, lowest: int, highest: int, hint: str = "") -> int:
    """Return an integer that is within the limits. Raises TypeError, ValueError."""
    number = whole_number(argument, value)
    if not lowest <= number <= highest:
        raise ValueError(f"{argument}={number}: {lowest:,} to {highest:,} are possible{hint}")
    return number


def check_timeout(timeout: Any) -> None:
    """Refuse an invalid timeout. Raises TypeError, ValueError."""
    check_number("timeout", timeout)
    if not 0 < timeout < threading.TIMEOUT_MAX:
        raise ValueError(f"timeout={timeout!r}: seconds above 0 are needed")


def check_seconds(argument: str, value: Any) -> None:
    """Refuse anything but seconds from 0 on. Raises TypeError, ValueError."""
    check_number(argument, value)
    if not 0 <= value < threading.TIMEOUT_MAX:
        raise ValueError(f"{argument}={value!r}: seconds from 0 on are needed")


def check_deadline(value: Any) -> None:
    """Refuse anything but seconds from 0 on, or infinity. Raises TypeError, ValueError."""
    check_number("deadline", value)
    if not (0 <= value <= LONGEST_DEADLINE or value == math.inf):
        raise ValueError(
            f"deadline={value!r}: seconds from 0 on are needed, {LONGEST_DEADLINE:,} at most, or "
            "infinity"
        )


def check_text(argument: str, value: Any) -> None:
    """Refuse anything but a string or None. Raises TypeError."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{argument}={value!r}: a string is needed, or None")


def check_texts(argument: str, value: Any) -> None:
    """Refuse anything but a string, several strings, or None. Raises TypeError."""
    if value is None or isinstance(value, str):
        return
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"{argument}={value!r}: a string is needed, a list of some, or None")


def check_flag(argument: str, value: Any) -> None:
    """Refuse anything but True and False. Raises TypeError."""
    if not is_flag(value):
        raise TypeError(f"{argument}={value!r}: True or False is needed")


def is_environment(value: Any) -> bool:
    """Whether a value maps texts to texts, as environment variables do."""
    return isinstance(value, Mapping) and all(
        isinstance(text, str) for pair in value.items() for text in pair
    )


def name_of(name: Any) -> str:
    """Return a collective's name, or "" for None. Raises TypeError."""
    if name is None:
        return ""
    check_text("name", name)
    return str(name)


def is_flag(value: Any) -> bool:
    """Whether it is a bool, or numpy's bool."""
    # A caller with a numpy type has imported numpy. A launcher has not, and need not wait for it.
    numpy = sys.modules.get("numpy")
    return isinstance(value, bool if numpy is None else (bool, numpy.bool_))


def _unless_plain(error: Exception | None) -> Exception | None:
    """Return what a message without it does not say: not that a value has another type."""
    return None if isinstance(error, TypeError) else error


def check_number(argument: str, value: Any, needed: str = "a number of seconds is needed") -> None:
    """Refuse anything but a real number. Raises TypeError."""
    if isinstance(value, float):  # `Real` asks functions of Python
        return
    if not isinstance(value, Real) or is_flag(value):
        raise TypeError(f"{argument}={value!r}: {needed}")
