# SPDX-License-Identifier: Apache-2.0
"""The limits of what clients of the control API may use.

Workers and operators stay below these limits. They keep a broken or hostile client from using up
the controller's memory or time.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from urllib.parse import unquote

from p4reduce_common.host_port import split_host_port

from p4reduce_controller.jobs.job import Job, JobMember
from p4reduce_controller.jobs.job_states import JobState
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError

MAX_REQUEST_BYTES = 64 << 10  # the largest real request has some hundred bytes
MAX_CALLS = 16384  # at once; 4,096 ranks may all wait, tell that they are there, and more
MAX_CALLS_A_CONNECTION = 2048
MAX_WAITS_A_RANK = 8  # AwaitReady and Reform; a repeated one may overlap with its forerunner
MAX_PRESENCE_PER_RANK = 8  # one is enough; a broken one may not have been noticed yet
MAX_FORMING_JOBS_A_PEER = 64
MAX_FORMING_RANKS_A_PEER = 4096

SERVER_OPTIONS = (
    # Two servers on one TCP port would share the calls between them; off, the second is refused.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_concurrent_streams", MAX_CALLS_A_CONNECTION),
    # Who connects and says nothing, and who is gone without having said so.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # gRPC's own is a minute, whatever keepalive_timeout
    ("grpc.max_connection_idle_ms", 600_000),
)


class PeerLimits:
    """What each peer may have unfinished. Running jobs do not count."""

    def __init__(self) -> None:
        self._joined: defaultdict[str, weakref.WeakKeyDictionary[JobMember, Job]] = defaultdict(
            weakref.WeakKeyDictionary
        )

    def check(self, peer: str, *, new_job: bool) -> None:
        """Raise JobRefusedError if the peer has reached its limit."""
        mine = self._joined.get(peer)
        if mine is None:
            return
        for member, job in list(mine.items()):
            if job.state is not JobState.FORMING or job.members.get(member.rank) is not member:
                del mine[member]
        if not mine:
            del self._joined[peer]
        if len(mine) >= MAX_FORMING_RANKS_A_PEER:
            raise JobRefusedError(
                Cause.EXHAUSTED,
                f"{MAX_FORMING_RANKS_A_PEER} ranks of jobs that are still forming have joined "
                "from there already; wait until a job runs, or delete one",
            )
        if new_job and len(set(mine.values())) >= MAX_FORMING_JOBS_A_PEER:
            raise JobRefusedError(
                Cause.EXHAUSTED,
                f"{MAX_FORMING_JOBS_A_PEER} jobs with ranks from there are still forming; "
                "wait until one runs, or delete one",
            )

    def joined(self, peer: str, job: Job, member: JobMember) -> None:
        """Note the host from which a rank joined."""
        self._joined[peer][member] = job


def peer_host(peer: str) -> str:
    """Return the name that gRPC gives a peer, without its port: all connections of a host are one
    peer."""
    kind, _, rest = peer.partition(":")
    return f"{kind}:{split_host_port(unquote(rest))[0]}" if kind in ("ipv4", "ipv6") else kind


def check_waits(member: JobMember) -> None:
    """Raise JobRefusedError if the rank has too many waiting calls."""
    if member.waiting >= MAX_WAITS_A_RANK:
        raise JobRefusedError(
            Cause.EXHAUSTED, f"{MAX_WAITS_A_RANK} calls of {member} wait already; one is enough"
        )


def check_presence(member: JobMember) -> None:
    """Raise JobRefusedError if the rank holds too many calls open."""
    if member.presence_calls >= MAX_PRESENCE_PER_RANK:
        raise JobRefusedError(
            Cause.EXHAUSTED,
            f"{member} attends {MAX_PRESENCE_PER_RANK} times already",
        )
