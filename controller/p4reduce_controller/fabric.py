# SPDX-License-Identifier: Apache-2.0
"""What is on the switch: puts jobs there, takes them off, and reads what it counted.

Blocking, and meant for one thread: so a job's removal always comes after its installation.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from p4reduce.wire import HALF_FRAME_BYTES

from p4reduce_controller.layout import DELIVERIES, HelloLimit, Layout, flood_group, station
from p4reduce_controller.outcome import Outcome
from p4reduce_controller.p4client import SwitchClient, SwitchError, WriteRefusedError
from p4reduce_controller.program import Program
from p4reduce_controller.schema import Counts, Entity, Group, Op, Row, Update

HALVES = DELIVERIES[1:]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankCounts:
    """What a rank sent that was admitted, and what was multicast to it."""

    up: Counts
    down: Counts


class Fabric:
    """The one that writes to the switch."""

    def __init__(self, client: SwitchClient) -> None:
        self._client = client
        self._layouts: dict[int, Layout] = {}  # by incarnation; what is installed
        self._stations: Counter[tuple[int, int]] = Counter()  # how many jobs need each

    def prepare(
        self,
        program: Program,
        ip: int,
        mac: int,
        ports: Sequence[int],
        hello_limit: HelloLimit,
    ) -> None:
        """Put the program on the switch, and what is there whatever the jobs. Raises SwitchError.

        Nothing of what an earlier controller installed is left.
        """
        self._client.set_pipeline(program)
        leftovers = self._client.read_groups()
        self._client.write([Update(Op.DELETE, group) for group in leftovers])
        self._client.insert("own_address", {"ip": ip}, "is_own", {"mac": mac})
        self._client.write([Update(Op.INSERT, flood_group(ports))])
        self._client.set_meter("hello_rate", hello_limit.rate, hello_limit.burst)

    def install(self, incarnation: int, layout: Layout) -> None:
        """Put a job on the switch: all of it or, raising SwitchError, nothing."""
        done: list[list[Update]] = []
        new = [key for key in layout.stations if not self._stations[key]]
        stages: list[Sequence[Entity]] = [*layout.stages, [station(*key) for key in new]]
        try:
            for stage in stages:
                updates = [Update(Op.INSERT, entity) for entity in stage]
                # Until the answer comes, all of it may have been done.
                done.append(updates)
                try:
                    self._client.write(updates)
                except WriteRefusedError as error:
                    done[-1] = error.done
                    raise
        except SwitchError:
            for updates in reversed(done):
                self._undo([update.entity for update in updates])
            raise
        self._layouts[incarnation] = layout
        self._stations.update(layout.stations)

    def remove(self, incarnation: int) -> None:
        """Take a job off the switch, as far as it is there."""
        layout = self._layouts.pop(incarnation, None)
        if layout is None:
            return
        self._stations.subtract(layout.stations)
        gone = [key for key in layout.stations if not self._stations[key]]
        for stage in reversed(layout.stages):
            self._undo(stage)
        self._undo([station(*key) for key in gone])
        self._stations += Counter()  # drops those at zero

    def _undo(self, entities: Sequence[Entity]) -> None:
        try:
            self._client.write([Update(Op.DELETE, _named(entity)) for entity in entities])
        except SwitchError as error:
            # What cannot be deleted was not there, or the switch is gone: no more can be done.
            log.warning("while removing entries: %s", error)

    def statistics(self, incarnation: int) -> dict[int, RankCounts]:
        """Return what was counted for each rank of a job that is installed. Raises SwitchError."""
        layout = self._layouts.get(incarnation)
        if layout is None:
            return {}
        up = {row.match["rank"]: _counts(row) for row in self._read("admission", layout.admissions)}
        down: dict[int, Counts] = {}
        for row in self._read("delivery", layout.deliveries):
            rank, more = row.params["rank"], _sent_down(row)
            so_far = down.get(rank, Counts(0, 0))
            down[rank] = Counts(so_far.frames + more.frames, so_far.bytes + more.bytes)
        nothing = Counts(0, 0)
        return {
            rank: RankCounts(up.get(rank, nothing), down.get(rank, nothing)) for rank in sorted(up)
        }

    def _read(self, table: str, rows: Sequence[Row]) -> list[Row]:
        wanted = {frozenset(row.match.items()) for row in rows}
        read = self._client.read_table(table)
        return [row for row in read if frozenset(row.match.items()) in wanted]

    def outcomes(self) -> dict[Outcome, Counts]:
        """Return what became of every frame so far. Raises SwitchError."""
        cells = self._client.read_counter("outcomes")
        return {outcome: cells[outcome] for outcome in Outcome}

    def tables(self) -> list[str]:
        """Return the tables' names."""
        return self._client.schema.tables

    def table(self, name: str) -> list[Row]:
        """Return a table's entries. Raises SchemaError for a name that there is not."""
        return self._client.read_table(name)


def _named(entity: Entity) -> Entity:
    """Return only what names an entity, which is all that deleting it takes."""
    if isinstance(entity, Row):
        return Row(entity.table, entity.match)
    if isinstance(entity, Group):
        return Group(entity.group)
    return entity


def _sent_down(row: Row) -> Counts:
    """Return what left by a row of the delivery table.

    A switch counts a copy with the length of the frame that it was made of. For the halves of a
    result that is a contribution without lanes: they are there because of it.
    """
    counts = _counts(row)
    if row.action in HALVES:
        return Counts(counts.frames, counts.frames * HALF_FRAME_BYTES)
    return counts


def _counts(row: Row) -> Counts:
    return row.counts or Counts(0, 0)
