# SPDX-License-Identifier: Apache-2.0
"""What a forked child does with the connections of its parent: it lets go of them.

A DataLoader's worker, or a process that a rank has forked and that outlives it, would keep them
open. The switch would then keep the rank's port for it, and the controller would not notice that
the rank has ended.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Protocol


class Holder(Protocol):
    """Owns file descriptors that are of no use in a child."""

    def descriptors(self) -> Iterable[int]:
        """Return those that are open; -1 stands for none."""


_HOLDERS: weakref.WeakSet[Holder] = weakref.WeakSet()


def keep_from_children(holder: Holder) -> None:
    """Let forked children let go of what this has open at the fork."""
    _HOLDERS.add(holder)


def close_inherited(descriptors: Iterable[int]) -> None:
    """Put /dev/null in the place of connections; the parent's remain as they are.

    Their numbers stay in use, because objects that the child has inherited still name them.
    """
    try:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no descriptor is left for it
        return
    for descriptor in descriptors:
        if descriptor >= 0:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _close_all_inherited() -> None:
    close_inherited([one for holder in list(_HOLDERS) for one in holder.descriptors()])
    _HOLDERS.clear()


os.register_at_fork(after_in_child=_close_all_inherited)
