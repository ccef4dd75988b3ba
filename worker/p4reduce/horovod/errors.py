# SPDX-License-Identifier: Apache-2.0
"""Horovod's error for collectives that failed, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class HorovodInternalError(RuntimeError):
    """A collective failed, as where a rank is lost; `elastic.run` goes on after it."""


@contextmanager
def internal() -> Iterator[None]:
    """Raise what collectives of torch end with as `HorovodInternalError`."""
    import torch.distributed as dist

    try:
        yield
    except dist.DistError as error:
        raise HorovodInternalError(str(error)) from error


def refused(what: str, why: str) -> NotImplementedError:
    """Return the error for a part of Horovod's interface that is not here."""
    return NotImplementedError(f"p4reduce.horovod: {what}: {why}")
