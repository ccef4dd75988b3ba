# SPDX-License-Identifier: Apache-2.0
"""What becomes of an update and of a read: what is left to do in the data plane's thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Operation: TypeAlias = Callable[[], None]
"""What is left to do of an update. It runs in the data plane, between two packets, and raises
`P4RuntimeError` or `StateError` for what the pipeline's state refuses."""


@dataclass(frozen=True, slots=True)
class Query:
    """The query of one requested entity.

    Attributes:
        snapshot: copies the rows out of the pipeline; called in the data plane's thread.
        encode: makes a `p4.v1.Entity` of one row. It is slow, in pure-Python protobuf.
    """

    snapshot: Callable[[], list[Any]]
    encode: Callable[[Any], Any]
