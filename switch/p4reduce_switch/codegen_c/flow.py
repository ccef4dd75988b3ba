# SPDX-License-Identifier: Apache-2.0
"""Finds wide fields that are read before they are written.

All fields of a packet start as zero. For 2,048 bits that costs as much as an addition. So a field
is zeroed only if it may be read before it is written; old bytes of the stack must not leave with a
packet. Each function is generated twice, and the first time finds these fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p4reduce_switch.program.ir import FieldRef


@dataclass(slots=True)
class WrittenFields:
    """The fields that have been written at a place: on all paths to it, and on some."""

    must: set[FieldRef] = field(default_factory=set)
    may: set[FieldRef] = field(default_factory=set)
    may_any: bool = False

    def copy(self) -> WrittenFields:
        return WrittenFields(set(self.must), set(self.may), self.may_any)


class Flow:
    """Follows the generated code in order.

    Attributes:
        zeroed: fields that are zeroed at the start.
        missed: fields that may be read unwritten and are not zeroed.
    """

    def __init__(self, zeroed: set[FieldRef]) -> None:
        self.zeroed = zeroed
        self.missed: set[FieldRef] = set()
        self.state = WrittenFields(set(zeroed), set(zeroed))

    def read(self, field: FieldRef) -> None:
        if field not in self.state.must:
            self.missed.add(field)

    def write(self, field: FieldRef) -> None:
        self.state.must.add(field)
        self.state.may.add(field)

    def is_untouched(self, field: FieldRef) -> bool:
        """Whether nothing can have written the field so far, so that it is zero."""
        return field not in self.state.may and not self.state.may_any

    def fork(self) -> WrittenFields:
        """Return the state to return to for another branch."""
        return self.state.copy()

    def resume(self, state: WrittenFields) -> WrittenFields:
        """Continue from `state`; return the state that was current."""
        before, self.state = self.state, state.copy()
        return before

    def join(self, other: WrittenFields) -> None:
        """Merge in the state at the end of another branch."""
        self.state.must &= other.must
        self.state.may |= other.may
        self.state.may_any |= other.may_any

    def forget(self) -> None:
        """Forget what is known, because any path may lead here."""
        self.state.must = set(self.zeroed)
        self.state.may_any = True
