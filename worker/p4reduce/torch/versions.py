# SPDX-License-Identifier: Apache-2.0
"""The tested versions of torch. Others cause a warning."""

from __future__ import annotations

import re
import warnings

OLDEST, NEWEST = (2, 10), (2, 15)  # pyproject.toml's extra "torch" has the same bounds


def warn_if_untested(version: str) -> None:
    """Warn of an untested version.

    Args:
        version: of torch, "2.13.0+cpu".
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        tested = f"torch {_shown(OLDEST)} to {_shown(NEWEST)}"
        warnings.warn(
            f"p4reduce is tested with {tested}, and this is torch {version}: "
            f"pip install 'p4reduce[torch]' brings one of those",
            stacklevel=2,
        )


def _shown(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
