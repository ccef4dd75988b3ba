# SPDX-License-Identifier: Apache-2.0
"""Which wide fields have been written where they are read.

All fields of a packet start as zero. For a field of 2,048 bits that costs as much as an addition.
So a field is zeroed only if something may read it before it is written. Otherwise old bytes of the
stack could leave with a packet. A function is generated twice: the first time to find out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p4reduce_switch.program.ir import FieldRef

__all__ = ["Flow", "State"]


@dataclass(slots=True)
class State:
    """At one place: the fields that have been written on all, and on some ways to it."""

    must: set[FieldRef] = field(default_factory=set)
    may: set[FieldRef] = field(default_factory=set)
    may_any: bool = False

    def copy(self) -> State:
        return State(set(self.must), set(self.may), self.may_any)


class Flow:
    """Follows the generated code in its order.

    Attributes:
        zeroed: fields that are zeroed before all.
        missed: fields read where they may not have been written, though not zeroed.
    """

    def __init__(self, zeroed: set[FieldRef]) -> None:
        self.zeroed = zeroed
        self.missed: set[FieldRef] = set()
        self.state = State(set(zeroed), set(zeroed))

    def read(self, field: FieldRef) -> None:
        if field not in self.state.must:
            self.missed.add(field)

    def write(self, field: FieldRef) -> None:
        self.state.must.add(field)
        self.state.may.add(field)

    def is_untouched(self, field: FieldRef) -> bool:
        """Nothing can have written the field so far: it would be zero."""
        return field not in self.state.may and not self.state.may_any

    def fork(self) -> State:
        """The state to come back to for another branch."""
        return self.state.copy()

    def resume(self, state: State) -> State:
        """Go on from `state`; gives the one that was current."""
        before, self.state = self.state, state.copy()
        return before

    def join(self, other: State) -> None:
        """The end of another branch leads here, too."""
        self.state.must &= other.must
        self.state.may |= other.may
        self.state.may_any |= other.may_any

    def forget(self) -> None:
        """Anything may have led here."""
        self.state.must = set(self.zeroed)
        self.state.may_any = True
