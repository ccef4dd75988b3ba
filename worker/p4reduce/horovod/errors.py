# SPDX-License-Identifier: Apache-2.0
"""Horovod's error for failed collectives, and errors for what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class HorovodInternalError(RuntimeError):
    """A collective failed, for example because a rank is lost. `elastic.run` continues after it."""


@contextmanager
def internal() -> Iterator[None]:
    """Raise errors of torch's collectives as `HorovodInternalError`."""
    import torch.distributed as dist

    try:
        yield
    except dist.DistError as error:
        raise HorovodInternalError(str(error)) from error


def refused(what: str, why: str) -> NotImplementedError:
    """Return the error for an unsupported part of Horovod's interface."""
    return NotImplementedError(f"p4reduce.horovod: {what}: {why}")
