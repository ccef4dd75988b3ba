# SPDX-License-Identifier: Apache-2.0
"""The control API's messages as tables and text for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from p4reduce.control import control_pb2 as pb
from p4reduce.wire.format import NO_BLOCK
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_STATE_STYLES = {
    "forming": "yellow",
    "running": "green",
    "failed": "bold red",
    "ended": "dim",
    "joined": "yellow",
    "attached": "green",
    "left": "dim",
    "lost": "bold red",
}
_SLOT_MARKS = {
    pb.SLOT_ACTIVITY_UNSPECIFIED: "?",
    pb.FREE: "·",
    pb.COLLECTING: "◐",
    pb.COMPLETE: "●",
}
_EVENT_STYLES = {
    "hello-refused": "yellow",
    "rank-lost": "red",
    "job-failed": "bold red",
    "switch-lost": "bold red",
    "job-running": "green",
}


def state_of(job: pb.Job) -> str:
    """Return a job's state in lower case."""
    return pb.JobState.Name(job.state).lower()


def quantity(number: float, unit: str = "") -> str:
    """Write a number in at most four digits, with a decimal SI prefix."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(number) < 9999.5 or prefix == "T":
            break
        number /= 1000
    return f"{number:.4g} {prefix}{unit}".rstrip()


def clock(seconds: float) -> str:
    """Write a time of today to the second, an earlier one with its date."""
    then, now = time.localtime(seconds), time.localtime()
    today = then[:3] == now[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


def age(seconds: float) -> str:
    """Return a duration as text."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def port_ranges(ports: Iterable[int]) -> str:
    """Write ports as `1-4, 7`."""
    runs: list[list[int]] = []
    for port in sorted(ports):
        if runs and runs[-1][1] == port - 1:
            runs[-1][1] = port
        else:
            runs.append([port, port])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def columns(*names: str, right: Sequence[str] = ()) -> Table:
    """Return an empty table; the columns in `right` are numbers."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for name in names:
        # The last one holds sentences and may wrap; a number or name that wraps cannot be read.
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name != names[-1],
            overflow="fold",
        )
    return table


def _state(name: str) -> Text:
    return Text(name, style=_STATE_STYLES.get(name, ""))


def jobs_table(jobs: Iterable[pb.Job]) -> RenderableType:
    """List jobs, one per line."""
    table = columns("job", "id", "state", "ranks", "slots", "created", "reason", right=["id"])
    for job in jobs:
        ranks = str(job.world_size)
        if job.state == pb.FORMING:
            attached = sum(member.state == "attached" for member in job.members)
            ranks = f"{attached} of {ranks}"
        table.add_row(
            job.name,
            str(job.incarnation),
            _state(state_of(job)),
            ranks,
            _slots(job),
            clock(job.created),
            job.reason,
        )
    return table if table.row_count else Text("no jobs", style="dim")


def _slots(job: pb.Job) -> str:
    """Write which slots it has, on its topmost switch; nothing where that is not known yet."""
    if not job.switches:
        return ""
    return f"{job.slot_base}-{job.slot_base + job.slot_count - 1}"


def job_details(job: pb.Job, ranks: Mapping[int, pb.RankStatistics]) -> RenderableType:
    """Show one job with its ranks."""
    facts: dict[str, str | Text] = {
        "job": Text(f"{job.name} (incarnation {job.incarnation})", style="bold"),
        "state": _state(state_of(job)),
        "reason": job.reason,
        "ranks": str(job.world_size),
        "slots": f"{_slots(job)} ({job.slot_count})" if job.switches else str(job.slot_count),
        "switches": ", ".join(job.switches) if len(job.switches) > 1 else "",
        "created": f"{clock(job.created)} ({age(time.time() - job.created)} ago)",
        "token": "needed to join or delete it" if job.has_token else "",
    }
    table = columns(
        "rank", "state", "host", "pid", "port", "address", right=["rank", "pid", "port"]
    )
    members = {member.rank: member for member in job.members}
    several = len(job.switches) > 1
    for rank in range(job.world_size):
        member = members.get(rank, pb.Member(rank=rank, state="missing"))
        attached = bool(member.mac)
        at = f"{member.switch} " if several else ""
        table.add_row(
            str(rank),
            _state(member.state),
            member.host,
            str(member.pid or ""),
            f"{at}{member.port}" if attached else "",
            f"{member.ip}:{member.udp_port}" if attached else "",
        )
    parts: list[RenderableType] = [_facts(facts), Text(), table]
    if any(each.frames_up or each.frames_down for each in ranks.values()):
        parts += [Text(), _switch_figures(ranks)]
    if any(each.HasField("worker") for each in ranks.values()):
        parts += [Text(), _worker_figures(ranks)]
    return Group(*parts)


def _switch_figures(ranks: Mapping[int, pb.RankStatistics]) -> RenderableType:
    """What the switch counted at its ports."""
    numbers = ["rank", "up with payload", "empty", "bytes", "down", "bytes down"]
    table = columns(*numbers, right=numbers)
    table.title, table.title_justify, table.title_style = "at the switch", "left", "dim"
    for rank, each in sorted(ranks.items()):
        table.add_row(
            str(rank),
            quantity(each.payload_up),
            quantity(each.empty_up),
            quantity(each.bytes_up, "B"),
            quantity(each.frames_down),
            quantity(each.bytes_down, "B"),
        )
    return table


def _worker_figures(ranks: Mapping[int, pb.RankStatistics]) -> RenderableType:
    """What only the ranks know."""
    numbers = ["rank", "collectives", "blocks", "skipped", "density", "sent", "empty", "repeated"]
    table = columns(*numbers, right=numbers)
    table.title, table.title_justify, table.title_style = (
        "reported by the ranks, over all lives of the job",
        "left",
        "dim",
    )
    for rank, each in sorted(ranks.items()):
        if not each.HasField("worker"):
            continue
        own = each.worker
        table.add_row(
            str(rank),
            quantity(own.collectives),
            quantity(own.blocks),
            quantity(own.blocks - min(own.blocks, own.blocks_announced)),
            density(own),
            quantity(own.blocks_sent),
            quantity(own.empty_sent),
            quantity(own.retransmissions),
        )
    return table


def density(own: pb.WorkerStatistics) -> str:
    """Return which share of the blocks some rank had, as text."""
    return f"{100 * own.blocks_announced / own.blocks:.3g} %" if own.blocks else ""


def switch_details(switch: pb.Switch) -> RenderableType:
    """Show the switch as the controller sees it."""
    state = (
        Text(f"connected for {age(time.time() - switch.connected_since)}", style="green")
        if switch.connected
        else Text(f"lost: {switch.reason}", style="bold red")
    )
    named = switch.name not in ("", "switch")
    place = f"{switch.address} (device {switch.device_id})"
    return _facts(
        {
            "switch": Text(f"{switch.name} at {place}" if named else place, style="bold"),
            "state": state,
            "uplink": _uplink(switch.uplink) if switch.HasField("uplink") else "",
            "election id": switch.election_id + (" (primary)" if switch.primary else ""),
            "program": switch.program,
            "slots free": f"{switch.slots_free} of {switch.slots}",
            "own address": f"{switch.ip}, {switch.mac}",
            "ports": port_ranges(switch.ports),
            "lease": f"{switch.lease:g} s" if switch.lease else "",
            "HELLOs refused": str(switch.hellos_refused),
        }
    )


def _uplink(uplink: pb.Uplink) -> Text:
    text = f"port {uplink.port} to {uplink.parent} port {uplink.parent_port}"
    if uplink.works:
        return Text(text)
    return Text(f"{text}: {uplink.reason}", style="bold red")


def _facts(facts: Mapping[str, str | Text]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, fact in facts.items():
        if fact:
            table.add_row(name, fact)
    return table


def counters_table(counts: Iterable[pb.Count], of: str, *, zeros: bool) -> RenderableType:
    """List the cells of a counter, or the outcomes of frames. `of` is the column's name."""
    table = columns(of, "frames", "bytes", right=["frames", "bytes"])
    counts = list(counts)
    if not counts:  # a counter per entry of a table, whose entries come with jobs
        return Text("no entries: no job is running", style="dim")
    for count in counts:
        if zeros or count.frames:
            table.add_row(count.name, str(count.frames), str(count.bytes))
    return table if table.row_count else Text("no frames so far", style="dim")


def slots_view(switch: str, slots: pb.Slots) -> RenderableType:
    """Show the slots of a switch: a mark per slot, and a line per slot that waits for a rank."""
    parts: list[RenderableType] = []
    for job in slots.jobs:
        at = f" on switch {switch}" if switch else ""
        title = Text(f"{job.job}{at}", style="bold")
        done = sum(slot.activity == pb.COMPLETE for slot in job.slots)
        waiting = [slot for slot in job.slots if slot.activity == pb.COLLECTING]
        title.append(
            f"  {len(job.slots)} slots: {len(waiting)} collecting, {done} complete, "
            f"{len(job.slots) - done - len(waiting)} free",
            style="not bold",
        )
        marks = Text("".join(_SLOT_MARKS[slot.activity] for slot in job.slots))
        table = columns("slot", "round", "block", "heard", "waits for", right=["slot", "round"])
        for slot in waiting:
            ranks = port_ranges(slot.missing_ranks)
            heard = f"{slot.heard} of {job.children}"
            table.add_row(
                str(slot.slot), str(slot.round), _block(slot.block), heard, f"rank {ranks}"
            )
        parts += [title, marks, *([table] if waiting else []), Text()]
    return Group(*parts) if parts else Text("no job is running", style="dim")


def _block(number: int) -> str:
    return "none" if number == NO_BLOCK else str(number)


def entries_table(entries: Sequence[pb.TableEntry]) -> RenderableType:
    """List a table's entries: the match fields, the action with its parameters, the counts."""
    if not entries:
        return Text("no entries", style="dim")
    fields = sorted({name for entry in entries for name in entry.match})
    counts = ["frames", "bytes"] if any(entry.counted for entry in entries) else []
    table = columns(*fields, *counts, "action", right=counts)
    for entry in sorted(entries, key=lambda entry: [_natural(entry.match[f]) for f in fields]):
        params = ", ".join(f"{name}={value}" for name, value in sorted(entry.params.items()))
        cells = [entry.match[name] for name in fields]
        if counts:
            cells += [quantity(entry.frames), quantity(entry.bytes)]
        table.add_row(*cells, f"{entry.action}({params})")
    return table


def _natural(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (0, text)


def event_line(event: pb.Event) -> Text:
    """Write an event in one line."""
    line = Text(f"{clock(event.time)}  ", style="dim")
    line.append(f"{event.kind:<14}", style=_EVENT_STYLES.get(event.kind, "cyan"))
    if event.job:
        line.append(f" {event.job}", style="bold")
    line.append(f" {event.text}", style="not dim")
    return line
