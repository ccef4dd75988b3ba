# SPDX-License-Identifier: Apache-2.0
"""Arguments of a process group's methods, in the forms that they may have."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def as_given(value: T) -> T:
    """Return a value as it is."""
    return value


def listed(tensors: Any) -> list[Any]:
    """Return a list of tensors, given as such or as a single entry."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def nested(tensors: Any) -> list[list[torch.Tensor]]:
    """Return a list of lists of tensors, given as such, as its only entry, or as None."""
    lists = list(tensors or ())
    return [lists] if lists and isinstance(lists[0], torch.Tensor) else lists


def options_of(kind: type[T], timeout: timedelta | None, **fields: Any) -> T:
    """Return options of a kind, by their fields.

    Args:
        kind: of options.
        timeout: None: the default.
        fields: but for those that are None.
    """
    made: Any = kind()
    if timeout is not None:
        made.timeout = timeout
    for name, value in fields.items():
        if value is not None:
            setattr(made, name, value)
    return made  # type: ignore[no-any-return]


def with_fields(options: Any, kind: type[T], **fields: Any) -> T:
    """Return options of a kind with another's values, but for the fields that are given."""
    made = kind()
    for name in ("reduceOp", "rootRank", "rootTensor", "timeout", "asyncOp"):
        if hasattr(options, name) and hasattr(made, name):
            setattr(made, name, fields.get(name, getattr(options, name)))
    return made


def shape_of(tensors: Sequence[torch.Tensor]) -> str:
    """Return dtypes and shapes of tensors for messages, such as "float32 (3, 4)"."""
    return ", ".join(
        f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}" for tensor in tensors
    )
