# SPDX-License-Identifier: Apache-2.0
"""Egress queues as Python source: where a program looks at them, or they are set up somehow.

Ingress gives the packet's copies to `_enqueue` (`state/queues.py`); `_release` calls egress for
what is due. Without queues, ingress calls egress.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p4reduce_switch.codegen_python.context import Context

__all__ = ["queue_copy"]


def queue_copy(context: Context, port: str, priority: str, arguments: Sequence[str]) -> str:
    """The call that queues a copy; `arguments` are those of `egress` from `_instance` on."""
    return f"{context.bind('enqueue')}({port}, {priority}, egress, ({', '.join(arguments)},))"
