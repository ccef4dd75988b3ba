# SPDX-License-Identifier: Apache-2.0
"""A switch: the compiled P4 program in the embedded switch's pipeline, one frame at a time.

Its state is what the registers hold for each slot of the job. A frame is about one slot, so what
it does is worked out once for each pair of frame and slot state, by running the program, and then
remembered. That the other slots neither matter nor change is checked at each such run.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from p4reduce_controller.fabric.layout import own_addresses
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.fabric.schema import Entity, MulticastGroup, TableRow
from p4reduce_controller.topology.given import CPU_PORT
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.tables import Table, TableEntry

from p4reduce_model.found import Violation
from p4reduce_model.frames import Frames
from p4reduce_model.invariants import Cell, Invariants
from p4reduce_model.jobs import Control, ControlStep, stages
from p4reduce_model.wiring import Wiring

VERSIONS = 2
_FINAL_LANES = 3  # p4src/common/types.p4
_SLOTS_BEYOND = 2  # the job's, that are watched like those before it


class Taken(NamedTuple):
    """What the switch makes of a frame."""

    cells: int  # the slot's state afterwards
    out: int  # frames sent, as a set
    outcome: FrameOutcome


class CellProgress(NamedTuple):
    """How far a cell is: first the job counts, then the rounds since the first, then the rest."""

    job: int
    rounds: int
    heard: int
    final: bool  # the parent has answered

    def may_follow(self, other: CellProgress) -> bool:
        """Whether this may be the same moment as `other`, or a later one."""
        if self[:2] != other[:2]:
            return self[:2] > other[:2]
        return self.heard & other.heard == other.heard and self.final >= other.final


class Switch:
    """The program, the controller's entries, and all states that slots were found in.

    Args:
        wiring: of what is explored.
        number: which switch it is.
        frames: where frames get their numbers.
        program: p4c's JSON.
        invariants: what has to hold of each new state and of each frame sent.
        control: what the controller does.

    Attributes:
        name: of the switch.
        blank: the number of the state in which all registers are zero.
    """

    def __init__(
        self,
        wiring: Wiring,
        number: int,
        frames: Frames,
        program: bytes,
        invariants: Invariants,
        control: Control,
    ) -> None:
        self._scenario = scenario = wiring.scenario
        self._wiring = wiring
        self._switch = number
        self.name = wiring.names[number]
        self._frames = frames
        self._invariants = invariants
        self._steps = [step for step in control.steps if step.switch == number]
        # By the number of steps that all switches have done: this one's steps, and its restarts.
        self._own_steps = _counts(step.switch == number for step in control.steps)
        self._restarts = _counts(step.switch == number and step.wipes for step in control.steps)
        self._pipeline = Pipeline(program, cpu_port=CPU_PORT)
        own = wiring.endpoint(number)
        for row in own_addresses(parse_ip(own.ip), parse_mac(own.mac)):
            self._insert(row)
        for stage in stages(scenario, 0)[number]:
            for entity in stage:
                self._insert(entity)
        self._steps_done = 0
        self._registers = list(self._pipeline.registers.values())
        self._columns = {
            register.name.rpartition(".")[2]: column
            for column, register in enumerate(self._registers)
        }
        self._everybody = (1 << len(wiring.children(number))) - 1
        self._progress: dict[int, tuple[CellProgress, ...]] = {}
        self._contents: list[tuple[int, ...]] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self._taken: dict[tuple[int, int, int], Taken | Violation] = {}
        self.blank = self._number((0,) * (VERSIONS * len(self._registers)))

    @property
    def runs(self) -> int:
        """How many different pairs of slot state and frame the program was run on."""
        return len(self._taken)

    @property
    def states(self) -> int:
        """How many states slots were found in."""
        return len(self._contents)

    def restarts(self, done: int) -> int:
        """How often it has restarted after this number of the controller's steps."""
        return self._restarts[done]

    # -- What happens --------------------------------------------------------------------------

    def take(self, done: int, cells: int, number: int) -> Taken:
        """Run the program on a frame.

        Args:
            done: how many of the controller's steps have been done, on all switches.
            cells: the state of the slot that the frame is about.
            number: of the frame.
        """
        done = self._own_steps[done]
        key = (done, cells, number)
        taken = self._taken.get(key)
        if taken is None:
            try:
                taken = self._run(done, cells, number)
            except Violation as violation:
                taken = violation
            self._taken[key] = taken
        if isinstance(taken, Violation):
            raise taken
        return taken

    def cells(self, state: int) -> tuple[Cell, ...]:
        """What a state of a slot says, version by version."""
        return self._as_cells(self._contents[state])

    def progress(self, state: int) -> tuple[CellProgress, ...]:
        """How far each version of a slot is. Must never go back."""
        known = self._progress.get(state)
        if known is None:
            known = self._progress[state] = self._find_progress(state)
        return known

    def awaits_parent(self, state: int, job: int, round_: int) -> bool:
        """Whether all below were heard in that round, and the parent has not answered."""
        awaited = CellProgress(
            job, (round_ - self._scenario.first_round) & 0xFFFFFFFF, self._everybody, False
        )
        return awaited in self.progress(state)

    def _find_progress(self, state: int) -> tuple[CellProgress, ...]:
        first = self._scenario.first_round
        return tuple(
            CellProgress(cell.job, (cell.round - first) & 0xFFFFFFFF, cell.heard, cell.final)
            if cell.job
            else CellProgress(0, 0, 0, False)
            for cell in self.cells(state)
        )

    # -- Running the program -------------------------------------------------------------------

    def _run(self, done: int, cells: int, number: int) -> Taken:
        frame = self._frames[number]
        slot = frame.header.slot
        if slot >= self._scenario.slots:
            raise Violation(
                "slots", f"a frame is about slot {slot}, which the job has not: {frame}"
            )
        self._go_to(done)
        first = self._run_beside(0, cells, slot, frame.port, frame.data)
        second = self._run_beside(~0, cells, slot, frame.port, frame.repeated)
        if first != second:
            raise Violation(
                "nothing else matters",
                f"what the switch makes of {frame} depends on other slots, or on RETRANSMISSION",
            )
        content, out, outcome = first
        after = self._number(content)
        pairs = zip(self.progress(after), self.progress(cells), strict=True)
        self._invariants.check_order(
            self._said(cells),
            self._said(after),
            is_later=all(new.may_follow(old) for new, old in pairs),
        )
        return Taken(after, out, outcome)

    def _run_beside(
        self, other: int, cells: int, slot: int, port: int, data: bytes
    ) -> tuple[tuple[int, ...], int, FrameOutcome]:
        """Run it while the registers of all other slots hold `other`, cut to their widths."""
        first = self._wiring.first_slot(self._switch)
        last = first + self._scenario.slots + _SLOTS_BEYOND
        own = range((first + slot) * VERSIONS, (first + slot + 1) * VERSIONS)
        around = [index for index in range(last * VERSIONS) if index not in own]
        content = iter(self._contents[cells])
        fillings = []
        for register in self._registers:
            filling = other & ((1 << register.width) - 1)
            fillings.append(filling)
            for index in around:
                register.cells[index] = filling
        for index in own:
            for register in self._registers:
                register.cells[index] = next(content)
        counted = self._pipeline.counters["outcomes"].packets
        counted[:] = [0] * len(counted)
        sent = self._pipeline.process(port, data)
        for register, filling in zip(self._registers, fillings, strict=True):
            if any(register.cells[index] != filling for index in around):
                raise Violation(
                    "slots", f"a frame about slot {slot} writes to another one's {register.name}"
                )
        content_after = tuple(
            register.cells[index] for index in own for register in self._registers
        )
        return content_after, self._send(sent), FrameOutcome(counted.index(1))

    def _send(self, copies: list[tuple[int, bytes]]) -> int:
        """Put what the switch sends on the links."""
        out = 0
        check = partial(self._invariants.check_sent_by, self._switch)
        for port, data in copies:
            end = self._wiring.beyond(self._switch, port)
            out |= 1 << self._frames.number(
                inward=end is not None, at=end or (self._switch, port), data=data, check=check
            )
        return out

    def _number(self, content: tuple[int, ...]) -> int:
        number = self._numbers.get(content)
        if number is None:
            self._invariants.check_cells(self._switch, self._as_cells(content))
            number = self._numbers[content] = len(self._contents)
            self._contents.append(content)
        return number

    def _as_cells(self, content: tuple[int, ...]) -> tuple[Cell, ...]:
        width = len(self._registers)
        column = self._columns
        return tuple(
            Cell(
                job=part[column["jobs"]],
                round=part[column["rounds"]],
                heard=self._everybody & ~part[column["missing_ranks"]],
                tag=part[column["tags"]],
                block=part[column["blocks"]],
                format=part[column["formats"]],
                flags=part[column["all_flags"]],
                paid=(part[column["finals"]] or 3 * part[column["payloads"]]) == _FINAL_LANES,
                final=part[column["finals"]] != 0,
                words=tuple(part[column[f"sums{word}"]] for word in range(4)),
            )
            for part in (content[:width], content[width:])
        )

    def _said(self, state: int) -> str:
        return " and ".join(f"job {cell.job} round {cell.round}" for cell in self.cells(state))

    # -- The controller ------------------------------------------------------------------------

    def _go_to(self, done: int) -> None:
        """Bring the tables to what they are after that many steps."""
        while self._steps_done < done:
            self._do(self._steps[self._steps_done])
            self._steps_done += 1
        while self._steps_done > done:
            self._steps_done -= 1
            step = self._steps[self._steps_done]
            self._do(ControlStep("", insert=step.delete, delete=step.insert))

    def _do(self, step: ControlStep) -> None:
        for entity in step.delete:
            self._delete(entity)
        for entity in step.insert:
            self._insert(entity)

    def _insert(self, entity: Entity) -> None:
        if isinstance(entity, MulticastGroup):
            self._pipeline.multicast.insert(
                entity.group, [Replica(port, instance) for port, instance in entity.replicas]
            )
            return
        if not isinstance(entity, TableRow):
            raise TypeError(f"a job needs tables and groups only, not {entity}")
        table = self._pipeline.tables[entity.table]
        args = tuple(entity.params[name] for name, _ in table.actions[entity.action].params)
        table.insert(TableEntry(_match(table, entity), 0, entity.action, args))

    def _delete(self, entity: Entity) -> None:
        if isinstance(entity, MulticastGroup):
            self._pipeline.multicast.delete(entity.group)
        elif isinstance(entity, TableRow):
            table = self._pipeline.tables[entity.table]
            table.delete(_match(table, entity), 0)


def _match(table: Table, row: TableRow) -> tuple[int, ...]:
    return tuple(row.match[key.name] for key in table.key)


def _counts(which: Iterable[bool]) -> list[int]:
    """How many of the first n are true, for each n."""
    return list(accumulate(which, initial=0))
