# SPDX-License-Identifier: Apache-2.0
"""Keeps torch.compile out of this package: Dynamo must not trace what sends and receives.

After a graph break Dynamo also looks at the frames that compiled code calls. To keep it out,
`torch.compiler.disable` would import all of Dynamo, which takes seconds, and wrap every call. So
the code objects are marked, as Dynamo marks those that it gives up.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

T = TypeVar("T", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_SKIP = eval_frame._FrameExecStrategy(
    eval_frame._FrameAction.SKIP,  # this frame
    eval_frame._FrameAction.SKIP,  # and those that it calls
)


def eagerly(function: F) -> F:
    """Make a function, and all that it calls, run as without torch.compile."""
    eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def methods_eagerly(kind: T) -> T:
    """Make the methods of a class run as without torch.compile."""
    for member in vars(kind).values():
        if isfunction(member):
            eagerly(member)
    return kind
