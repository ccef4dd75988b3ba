# SPDX-License-Identifier: Apache-2.0
"""The errors of the library. All derive from `P4ReduceError`.

A traceback ends with the address of the error's section in the documentation (a note of the
exception, from Python 3.11 on). The message itself stays without it, for logs and comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable

PAGE = "docs/troubleshooting.md"


class P4ReduceError(Exception):
    """Base of all errors of this library, except for invalid arguments.

    Attributes:
        address: of this error's section, `PAGE` with an anchor. An internal subclass has the
            address of its public base.
    """

    address = f"{PAGE}#p4reduceerror-itself"

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ == __name__:
            cls.address = f"{PAGE}#{cls.__name__.lower()}"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.__notes__ = [f"See {self.address}"]


class ConfigurationError(P4ReduceError, ValueError):
    """Rank, world size, interface or another setting is missing, or two of them disagree."""


class AdmissionError(P4ReduceError):
    """The controller refuses this rank: taken, not fitting the job, or no slots are free."""


class ControllerUnreachableError(P4ReduceError, ConnectionError):
    """Nobody answers at the controller's address."""


class SwitchUnreachableError(P4ReduceError, ConnectionError):
    """No frames can be exchanged with the switch.

    Attributes:
        lasting: the cause will not go away by itself, so `init` does not wait.
    """

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


class P4ReduceTimeoutError(P4ReduceError, TimeoutError):
    """A wait reached its deadline.

    Attributes:
        missing: ranks that the switch or the controller reported as not heard.
        slot: the slot that waits, or None.
        seconds: how long the wait lasted.
    """

    def __init__(
        self,
        message: str,
        *,
        missing: Iterable[int] = (),
        slot: int | None = None,
        seconds: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.slot = slot
        self.seconds = seconds


class WorkerLostError(P4ReduceError):
    """Other ranks of the job died or left, so a sum of all ranks is impossible.

    Attributes:
        ranks: the lost ranks.
    """

    def __init__(self, message: str, *, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class JobEndedError(P4ReduceError):
    """The job was deleted, or the controller does not know it any more."""


class MismatchError(P4ReduceError):
    """The ranks called different collectives, or the same ones in another order.

    Attributes:
        ranks: those that differ from the majority, or all if there is no majority; empty
            if unknown.
    """

    def __init__(self, message: str, *, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class LaneOverflowError(P4ReduceError, OverflowError):
    """A sum of integers left the range of its lanes.

    Attributes:
        block: the first block seen to overflow: 256 elements of 32 bits, 512 of 16, 1,024 of 8 or
            2,048 of 4.
    """

    def __init__(self, message: str, *, block: int = 0) -> None:
        super().__init__(message)
        self.block = block


class ValueRangeError(P4ReduceError, OverflowError):
    """A float64 number is out of the range of float32, and so of the block exponents."""


class InterruptedCallError(P4ReduceError):
    """An exception from outside, such as a signal handler's, interrupted an earlier call.

    Examples are KeyboardInterrupt, and exceptions of a SIGALRM handler. It is then unknown how far
    the call got, and whether the other ranks rely on it.
    """


class ClosedError(P4ReduceError):
    """The communicator has been closed."""


class LaunchError(P4ReduceError):
    """Switch and controller could not be started, or have ended. See `p4reduce.launch`."""
