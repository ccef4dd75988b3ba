# SPDX-License-Identifier: Apache-2.0
"""Ranks exchange texts at a socket of rank 0."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from p4reduce import ConfigurationError, LaunchError, P4ReduceTimeoutError
from p4reduce import meeting as meeting_module
from p4reduce.meeting import SocketMeeting, agreed, listen

DEADLINE = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"127.0.0.1:{free_port()}" if request.param == "tcp" else f"unix:{tmp_path}/meet"


def all_ranks(size: int, do: Callable[[int], object]) -> list[object]:
    with ThreadPoolExecutor(size) as pool:
        return [one.result(DEADLINE) for one in [pool.submit(do, rank) for rank in range(size)]]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_learn_what_each_says(size: int, address: str) -> None:
    def rank_of(rank: int) -> list[list[str]]:
        meeting = SocketMeeting(address, rank, size, DEADLINE, "secret")
        said = [list(meeting.exchange(f"{rank}\n{turn} " * 1000)) for turn in range(3)]
        meeting.close()
        return said

    wanted = [[f"{rank}\n{turn} " * 1000 for rank in range(size)] for turn in range(3)]
    assert all_ranks(size, rank_of) == [wanted] * size
    path = Path(address.removeprefix("unix:"))
    for thread in threading.enumerate():
        if thread.name == "p4reduce-meet":
            thread.join(DEADLINE)
    assert not path.exists()


def test_who_does_not_come_is_named(address: str) -> None:
    def rank_of(rank: int) -> str:
        if rank == 2:
            return ""
        meeting = SocketMeeting(address, rank, 4, 1.0 if rank == 0 else DEADLINE)
        with pytest.raises(P4ReduceTimeoutError) as caught:
            meeting.exchange("here")
        assert caught.value.missing == (2,)
        return str(caught.value)

    said = all_ranks(4, rank_of)
    assert said == ["1 of 4 ranks did not come: 2"] * 2 + ["", "1 of 4 ranks did not come: 2"]


@pytest.mark.parametrize("rounds", [0, 1])
def test_who_comes_and_falls_silent_is_named(
    rounds: int, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting_module, "ROUND_TIMEOUT", DEADLINE)
    over = threading.Event()

    def rank_of(rank: int) -> str:
        with SocketMeeting(address, rank, 3, 1.0 if rank == 0 else DEADLINE) as meeting:
            for turn in range(rounds):
                meeting.exchange(f"here in turn {turn}")
                monkeypatch.setattr(meeting_module, "ROUND_TIMEOUT", 0.5)  # rank 0's, not theirs
            if rank == 1:
                over.wait(DEADLINE)
                return ""
            try:
                meeting.exchange("still here")
            except P4ReduceTimeoutError as error:
                return str(error)
            finally:
                over.set()
            return "all have come"

    named = "1 of 3 ranks did not come: 1"
    assert all_ranks(3, rank_of) == [named, "", named]


def test_rank_0_that_is_silent_is_named(address: str) -> None:
    """Nobody accepts its connection, as in a process that is stopped."""
    with (
        listen(address),
        SocketMeeting(address, 1, 2, 0.3) as meeting,
        pytest.raises(P4ReduceTimeoutError, match="rank 0 of 2 has not answered") as caught,
    ):
        meeting.exchange("here")
    assert caught.value.missing == (0,)


def test_who_ends_is_named(address: str) -> None:
    def rank_of(rank: int) -> None:
        meeting = SocketMeeting(address, rank, 3, DEADLINE)
        meeting.exchange("here")
        if rank == 1:
            meeting.close()
            return
        with pytest.raises(LaunchError, match="rank 1 has ended before the network was there"):
            meeting.exchange("still here")

    all_ranks(3, rank_of)


def test_nobody_hosts_it(address: str) -> None:
    with pytest.raises(P4ReduceTimeoutError, match="rank 1 does not reach rank 0 at ") as caught:
        SocketMeeting(address, 1, 2, 0.3)
    assert caught.value.missing == (0,)


@pytest.mark.parametrize(
    "stranger",
    [b"", b"GET / HTTP/1.1\n", b'{"rank": 1, "secret": "guessed"}\n', b'{"rank": 7}\n', b"[]\n",
     b"\xff\n", b'{"rank": "1", "secret": "right"}\n', b'{"rank": true, "secret": "right"}\n'],
)  # fmt: skip
def test_strangers_are_ignored(stranger: bytes) -> None:
    address = f"127.0.0.1:{free_port()}"
    place = ("127.0.0.1", int(address.rpartition(":")[2]))
    with listen(address) as listener, socket.create_connection(place) as other:
        other.sendall(stranger)
        other.shutdown(socket.SHUT_WR)

        def rank_of(rank: int) -> list[str]:
            own = listener if rank == 0 else None
            meeting = SocketMeeting(address, rank, 2, DEADLINE, "right", own)
            return list(meeting.exchange(str(rank)))

        assert all_ranks(2, rank_of) == [["0", "1"]] * 2


def test_all_or_none(address: str) -> None:
    """An error of one rank is one on all; their own comes first."""
    errors = {1: ValueError("wrong"), 2: ConfigurationError("set it")}

    def rank_of(rank: int) -> str:
        with SocketMeeting(address, rank, 4, DEADLINE) as meeting:
            assert agreed(rank, meeting.exchange, lambda: [rank, None]) == [
                [one, None] for one in range(4)
            ]

            def work() -> None:
                if rank in errors:
                    raise errors[rank]

            with pytest.raises((ConfigurationError, ValueError)) as caught:
                agreed(rank, meeting.exchange, work)
            return f"{type(caught.value).__name__}: {caught.value}"

    others = "ConfigurationError: rank 1: ValueError: wrong; rank 2: set it"
    assert all_ranks(4, rank_of) == [
        others,
        "ValueError: wrong",
        "ConfigurationError: set it; rank 1: ValueError: wrong",
        others,
    ]


def test_an_error_of_several_ranks_is_told_once(address: str) -> None:
    def rank_of(rank: int) -> str:
        def work() -> None:
            if rank:
                raise ConfigurationError("set it")

        with SocketMeeting(address, rank, 3, DEADLINE) as meeting:
            with pytest.raises(ConfigurationError) as caught:
                agreed(rank, meeting.exchange, work)
            return str(caught.value)

    assert all_ranks(3, rank_of) == ["rank 1: set it", "set it", "set it"]


def test_an_address_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        with pytest.raises(ConfigurationError, match=r"rank 0 cannot listen at 127\.0\.0\.1:"):
            listen(f"127.0.0.1:{taken.getsockname()[1]}")
    with pytest.raises(ConfigurationError, match="rank 0 cannot listen at nowhere: "):
        listen("nowhere")
