# SPDX-License-Identifier: Apache-2.0
"""Installs jobs on one switch, removes them, and reads its counters.

All calls block, and one thread makes them. So a job's removal always follows its installation.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from p4reduce.wire.format import HALF_FRAME_BYTES

from p4reduce_controller.fabric.compiled_program import PipelineProgram
from p4reduce_controller.fabric.layout import DELIVERIES, BaseEntries, Layout, station
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.fabric.p4client import (
    NoSwitchAnswerError,
    SwitchClient,
    SwitchError,
    WriteRefusedError,
)
from p4reduce_controller.fabric.schema import Entity, Op, TableRow, Update
from p4reduce_controller.fabric.slots import SwitchSlotState, read_slots
from p4reduce_controller.fabric.take_up import difference, key_only, read_all
from p4reduce_controller.values.counts import CounterValue, RankCounts

HALVES = DELIVERIES[1:]

log = logging.getLogger(__name__)


class PipelineLostError(SwitchError):
    """The switch no longer has the controller's program."""


class Fabric:
    """Writes to a switch. Its methods raise NoSwitchAnswerError if they need a session.

    Args:
        program: the P4 program for the switch.
        ground: entries that do not depend on jobs.
    """

    def __init__(self, program: PipelineProgram, ground: BaseEntries) -> None:
        self.program = program
        self.ground = ground
        self.cookie: int | None = None  # of the pipeline that holds what is remembered here
        self._session: SwitchClient | None = None
        self._layouts: dict[int, Layout] = {}  # by incarnation; what is installed
        self._stations: Counter[tuple[int, int]] = Counter()  # how many jobs need each

    @property
    def client(self) -> SwitchClient:
        """The session with the switch. Raises NoSwitchAnswerError if there is none."""
        if self._session is None:
            raise NoSwitchAnswerError("there is no session with the switch")
        return self._session

    def remember(self, cookie: int | None, layouts: Mapping[int, Layout]) -> None:
        """Assume, until `take_up` checks it, that the switch has these jobs."""
        self.cookie = cookie
        for incarnation, layout in layouts.items():
            self._note(incarnation, layout)

    def take_up(self, client: SwitchClient) -> bool:
        """Bring a switch into the state that it should have, and use this session from now on.

        Returns True if the switch kept its program and registers. Then only differing entries were
        changed, and jobs continue. Otherwise the switch is configured again, without jobs. Raises
        SwitchError.
        """
        kept = self.cookie is not None and client.has_pipeline(self.program, self.cookie)
        if kept:
            try:
                self._reconcile(client)
            except WriteRefusedError as error:
                log.warning("the switch cannot be taken over as it is: %s", error)
                kept = False
        if not kept:
            self._layouts.clear()
            self._stations.clear()
            self._prepare(client)
        limit = self.ground.hello_limit
        client.set_meter("hello_rate", limit.rate, limit.burst)
        self._session = client
        return kept

    def _reconcile(self, client: SwitchClient) -> None:
        jobs = self._layouts.values()
        wanted: list[Entity] = list(self.ground.entities)
        wanted += [entity for layout in jobs for stage in layout.stages for entity in stage]
        wanted += [station(*key) for key in self._stations]
        stages = difference(read_all(client), wanted).stages
        for stage in stages:
            client.write(stage)
        changed = [update for stage in stages for update in stage]
        if changed:
            shown = "; ".join(map(str, changed[:5])) + (" …" if len(changed) > 5 else "")
            log.warning("%d entries were wrong: %s", len(changed), shown)

    def _prepare(self, client: SwitchClient) -> None:
        """Nothing of what an earlier controller installed is left."""
        self.cookie = None  # until all is done: half of it is not to be taken up
        cookie = client.set_pipeline(self.program)
        leftovers = client.read_groups()
        client.write([Update(Op.DELETE, key_only(group)) for group in leftovers])
        client.write([Update(Op.INSERT, entity) for entity in self.ground.entities])
        self.cookie = cookie

    def hang_up(self) -> None:
        """End the session, if there is one."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def check(self) -> None:
        """Raise SwitchError unless the switch answers and still has the program."""
        if self.client.pipeline_cookie() != self.cookie:
            raise PipelineLostError(f"the switch at {self.client.address} has lost its program")

    def packet_out(self, port: int, frame: bytes) -> None:
        """Send a frame out of a port. Raises NoSwitchAnswerError without a session."""
        self.client.packet_out(port, frame)

    def _note(self, incarnation: int, layout: Layout) -> None:
        self._layouts[incarnation] = layout
        self._stations.update(layout.stations)

    def install(self, incarnation: int, layout: Layout) -> None:
        """Install a job completely, or raise WriteRefusedError and install nothing.

        If the session breaks meanwhile, `take_up` removes what was installed.
        """
        if self._layouts.get(incarnation) == layout:
            return  # it was asked for again, as nobody knew how far the first time came
        done: list[Sequence[Update]] = []
        new = [key for key in layout.stations if not self._is_there(key)]
        stages: list[Sequence[Entity]] = [*layout.stages, [station(*key) for key in new]]
        try:
            for stage in stages:
                updates = [Update(Op.INSERT, entity) for entity in stage]
                self.client.write(updates)
                done.append(updates)
        except WriteRefusedError as error:
            for part in (error.done, *reversed(done)):
                self._undo([update.entity for update in part])
            self.check()  # raises what is worse than a refusal
            raise
        self._note(incarnation, layout)

    def remove(self, incarnation: int) -> None:
        """Remove what the switch has of a job."""
        layout = self._layouts.pop(incarnation, None)
        if layout is None:
            return
        self._stations.subtract(layout.stations)
        self._stations += Counter()  # drops those at zero
        gone = [key for key in layout.stations if not self._is_there(key)]
        if self._session is None:
            return  # there is nothing to take it off
        for stage in reversed(layout.stages):
            self._undo(stage)
        self._undo([station(*key) for key in gone])

    def missing(self, incarnation: int) -> list[str]:
        """Return the entries that the switch lacks of an installed job. Raises SwitchError.

        An entry with other content counts as missing. Stations are left out: they forward hosts'
        ordinary traffic, and the job's frames need none.
        """
        layout = self._layouts.get(incarnation)
        if layout is None:
            return []
        wanted: list[Entity] = [entity for stage in layout.stages for entity in stage]
        updates = difference(read_all(self.client), wanted).updates
        return [str(update.entity) for update in updates if update.op is not Op.DELETE]

    def _is_there(self, key: tuple[int, int]) -> bool:
        return bool(self._stations[key]) or key in self.ground.stations

    def _undo(self, entities: Sequence[Entity]) -> None:
        if not entities:
            return
        try:
            self.client.write([Update(Op.DELETE, key_only(entity)) for entity in entities])
        except SwitchError as error:
            # What cannot be deleted was not there, or the switch is gone: no more can be done.
            log.warning("while removing entries: %s", error)

    def statistics(self, incarnation: int) -> dict[int, RankCounts]:
        """Return the counters of each rank of an installed job. Raises SwitchError."""
        layout = self._layouts.get(incarnation)
        if layout is None:
            return {}
        nothing = CounterValue(0, 0)
        admitted, delivered = layout.rank_by_admission, layout.rank_by_replica
        up, down = (
            dict.fromkeys(admitted.values(), nothing),
            dict.fromkeys(admitted.values(), nothing),
        )
        for row in self.client.read_table("admission"):
            if (rank := admitted.get(frozenset(row.match.items()))) is not None:
                up[rank] = _counts(row)
        for row in self.client.read_table("delivery"):
            if (rank := delivered.get(row.match["replica"])) is not None:
                so_far, more = down[rank], _sent_down(row)
                down[rank] = CounterValue(so_far.frames + more.frames, so_far.bytes + more.bytes)
        return {rank: RankCounts(up[rank], down[rank]) for rank in sorted(up)}

    def outcomes(self) -> dict[FrameOutcome, CounterValue]:
        """Return how many frames had each outcome so far. Raises SwitchError."""
        cells = self.client.read_counter("outcomes")
        return {outcome: cells[outcome] for outcome in FrameOutcome}

    def counter(self, name: str) -> dict[str, CounterValue]:
        """Return a counter of the program: by entry for a table's counter, else by cell.

        Raises SchemaError if no counter has that name.
        """
        table = self.client.schema.table_of_counter(name)
        if table is None:
            cells = self.client.read_counter(name)
            return {str(index): counts for index, counts in enumerate(cells)}
        return {str(row): _counts(row) for row in self.client.read_table(table)}

    def slots(self, incarnation: int, slots: range) -> list[SwitchSlotState]:
        """Return what each of a job's slots is doing. Raises SwitchError."""
        return read_slots(self.client, slots, incarnation)

    def tables(self) -> list[str]:
        """Return the tables' names."""
        return self.client.schema.tables

    def table(self, name: str) -> list[TableRow]:
        """Return a table's entries. Raises SchemaError if no table has that name."""
        return self.client.read_table(name)


def _sent_down(row: TableRow) -> CounterValue:
    """Return what left by a row of the delivery table.

    A switch counts a copy with the length of the frame that it was made of. For the halves of a
    result that is a contribution without lanes: they are there because of it.
    """
    counts = _counts(row)
    if row.action in HALVES:
        return CounterValue(counts.frames, counts.frames * HALF_FRAME_BYTES)
    return counts


def _counts(row: TableRow) -> CounterValue:
    return row.counts or CounterValue(0, 0)
