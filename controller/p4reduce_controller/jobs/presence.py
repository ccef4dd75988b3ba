# SPDX-License-Identifier: Apache-2.0
"""Detects lost ranks by their ended process, before their silence shows it.

Each rank holds a call open (`Attend`) that ends with its process. That alone proves nothing: a
proxy may have hung up, or the network. So:

- A rank on this machine is lost when its process is gone, as this machine's kernel says. It is
  asked when the call has ended, and again and again as long as there is none.
- A rank elsewhere is lost when the call ended while the rank had just been heard, and neither a
  call nor a heartbeat has come for a lease since then. Somebody closed such a call. A cut network
  says nothing for longer than that, and is left to leases.py.
"""

from __future__ import annotations

from pathlib import Path

from p4reduce.control.namespaces import namespace_id
from p4reduce_common.figures import three_digits

from p4reduce_controller.jobs import leases
from p4reduce_controller.jobs.job import JobMember

UNATTENDED = 2.0  # seconds without call and heartbeat, at least, until a process is asked for
_STATE, _STARTED = 0, 19  # of /proc/PID/stat's fields behind the name: proc(5)


def process_start(pid: int) -> int | None:
    """Return when a process of this machine started, in ticks; None if it has ended or is
    ending."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in "ZX" else int(fields[_STARTED])


def is_local(processes: str) -> bool:
    """Whether a caller with that `namespace_id("pid")` has its processes where this one sees them.

    Names do not tell: two hosts may both be called "localhost", and one may reach the other by a
    tunnel. A container has process numbers of its own.
    """
    return processes != "" and processes == namespace_id("pid")


def begin(member: JobMember) -> None:
    """A call of a rank has opened."""
    member.presence_calls += 1
    member.cut = None
    if member.local and member.process is None:
        member.process = process_start(member.pid)


def end(member: JobMember, now: float, lease: float) -> str:
    """A call of a rank has ended. Return why the rank is lost, or nothing."""
    member.presence_calls -= 1
    if member.presence_calls:
        return ""
    if member.local:
        return _gone(member) if member.process is not None else ""
    if now - member.heard < leases.QUIET * lease:
        member.cut = now
    return ""


def run_out(member: JobMember, now: float, lease: float) -> str:
    """Return why a rank without a call is now lost, or nothing."""
    if member.presence_calls or member.waiting:
        return ""
    if member.cut is not None and now - member.cut >= lease:
        silent = three_digits(now - member.cut)
        return f"{member} was lost: its connection was closed, and it was not heard for {silent} s"
    if not member.local:
        return ""
    # A process that was never seen may be hidden from here: then its heartbeats speak for it.
    seen = member.process is not None
    if not seen and now - member.heard < max(UNATTENDED, leases.QUIET * lease):
        return ""
    return _gone(member)


def _gone(member: JobMember) -> str:
    started = process_start(member.pid)
    if started is None or member.process not in (None, started):
        return f"{member} was lost: its process has ended"
    return ""
