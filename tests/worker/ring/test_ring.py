# SPDX-License-Identifier: Apache-2.0
"""The ring of TCP connections: the same sums as the switch's, and what goes wrong with it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from one_process import SWITCH, OneProcess, endpoint
from p4reduce import SparseRows
from p4reduce.errors import (
    ClosedError,
    ConfigurationError,
    LaneOverflowError,
    MismatchError,
    P4ReduceError,
    P4ReduceTimeoutError,
    WorkerLostError,
)
from p4reduce.protocol.slots import SlotMachine
from p4reduce.ring.fallback import RingRun, try_ring
from p4reduce.ring.handshake import HandshakeError, accept, connect, introduction
from p4reduce.ring.links import TRY, RingNeighbours
from p4reduce.ring.rank_address import RingListener
from p4reduce.session.machine import Machine
from p4reduce.tensors import plans
from p4reduce.tensors.call_log import CallLog
from p4reduce.tensors.plans import CollectivePlan
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation
from p4reduce_common.host_port import parse_host_port
from worker_system import DEADLINE, wait_for

SLOTS = 4
WORLD = 3
INCARNATION = 77


class Rank:
    """A rank that has lost its switch: what `RingRun` needs, without a session."""

    def __init__(self, number: int, who: RingNeighbours, listener: RingListener) -> None:
        self.call_log = CallLog()
        self.calls: list[Collective] = []
        self.plans: list[CollectivePlan[Any]] = []
        self.number = number
        self.listener = listener
        self.back = 0  # the incarnation by which it could use a switch
        self.over: P4ReduceError | None = None
        self.deadline = time.monotonic() + DEADLINE
        self.by_ring = 0
        self.killed = False
        self.ended: str | P4ReduceError | None = None
        self.who = who
        self.continue_with(
            SlotMachine(
                slots=SLOTS,
                job=INCARNATION,
                rank=number,
                world_size=len(who.addresses),
                here=endpoint(number),
                switch=SWITCH,
            )
        )
        self.thread = threading.Thread(target=self._run, daemon=True)

    def continue_with(self, machine: Machine) -> None:
        """Begin with what a machine has under way."""
        self.machine = machine
        self.run = RingRun(
            machine,
            self.call_log,
            self.count,
            self.who,
            self.listener,
            lambda: self.back,
            self._left,
        )

    def _run(self) -> None:
        try:
            self.run.run()
            self.ended = "back"
        except RuntimeError:
            assert self.killed
        except P4ReduceError as error:
            self.ended = error
            self.call_log.fail(error)

    def _left(self, what: str, rank: int | None) -> float:
        if self.killed:
            raise RuntimeError("killed")
        if self.over is not None:
            raise self.over
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise P4ReduceTimeoutError(what, missing=() if rank is None else (rank,))
        return left

    def count(self, collectives: int) -> None:
        self.by_ring += collectives

    # What a test does.

    def call(self, plan: CollectivePlan[Any]) -> Collective:
        collective = started(plan, self.number, len(self.calls))
        self.call_log.add(collective)
        self.calls.append(collective)
        self.plans.append(plan)
        self.run.wake()
        return collective

    def kill(self) -> None:
        """Break its connections without a word."""
        self.killed = True
        self.run.wake()

    def stop(self, error: P4ReduceError) -> None:
        self.over = error
        self.run.wake()


def started(plan: CollectivePlan[Any], rank: int, sequence: int) -> Collective:
    return Collective(
        plan.call,
        plan.source,
        plan.target,
        sequence=sequence,
        slots=SLOTS,
        timeout=2 * DEADLINE,
        lane_format=plan.lane_format,
        noise=plan.noise(rank, sequence),
    )


class Ring:
    def __init__(self, world_size: int) -> None:
        self.listeners = [RingListener("127.0.0.1", "") for _ in range(world_size)]
        addresses = tuple(one.address for one in self.listeners)
        self.secret = secrets.token_bytes(32)
        self.who = [
            RingNeighbours(INCARNATION, rank, addresses, self.secret) for rank in range(world_size)
        ]
        self.ranks = [
            Rank(rank, self.who[rank], self.listeners[rank]) for rank in range(world_size)
        ]

    def start(self, *ranks: int) -> None:
        for rank in ranks or range(len(self.ranks)):
            self.ranks[rank].thread.start()

    def ends(self) -> list[Any]:
        for rank in self.ranks:
            if rank.thread.ident is not None:
                rank.thread.join(DEADLINE)
                assert not rank.thread.is_alive(), f"rank {rank.number} hangs"
        return [rank.ended for rank in self.ranks]

    def close(self) -> None:
        for rank in self.ranks:
            rank.stop(ClosedError("the test is over"))
        self.ends()
        for listener in self.listeners:
            listener.close()


@pytest.fixture
def ring() -> Iterator[Ring]:
    running = Ring(WORLD)
    try:
        yield running
    finally:
        running.close()


def summing(array: npt.NDArray[Any], precision: str | None = None) -> CollectivePlan[Any]:
    return plans.allreduce(array, Operation.SUM, None, None, precision, world_size=WORLD)


def all_sum_up(ring: Ring) -> None:
    calls = [rank.call(summing(np.ones(300, np.int32))) for rank in ring.ranks]
    for call in calls:
        call.wait(DEADLINE)


# -- The same as by the switch -------------------------------------------------------------------


def numbers(rng: np.random.Generator, dtype: str, size: int) -> npt.NDArray[Any]:
    """Blocks of all magnitudes, some of zeros, one with NaN where there is such a thing."""
    if np.dtype(dtype).kind == "i":
        limit = np.iinfo(dtype).max // WORLD
        array = rng.integers(-limit, limit, size).astype(dtype)
    else:
        array = (rng.standard_normal(size) * 2.0 ** rng.integers(-12, 12, size)).astype(dtype)
        array[size // 2] = np.nan
    for start in range(0, size, 256):
        array[start : start + 256] *= np.dtype(dtype).type(rng.random() < 0.7)
    return array


MakePlan = Callable[[npt.NDArray[Any], int], CollectivePlan[Any]]


def by_allreduce(op: Operation = Operation.SUM, precision: str | None = None) -> MakePlan:
    return lambda array, rank: plans.allreduce(
        array, op, None, None, precision, 7 if precision else None, world_size=WORLD
    )


def sparse_sum(array: npt.NDArray[Any], rank: int) -> CollectivePlan[Any]:
    """Of rows of 100, as the whole flat array."""
    numbers = np.flatnonzero(np.arange(len(array) // 100) % WORLD != rank)
    rows = SparseRows(numbers, array.reshape(-1, 100)[numbers], (len(array) // 100, 100))
    options: dict[str, Any] = {"dense": False, "world_size": WORLD}
    plan = plans.allreduce_sparse(rows, Operation.SUM, None, None, None, **options)
    return dataclasses.replace(plan, result=lambda: plan.result().to_dense())


@pytest.mark.parametrize(
    ("dtype", "plan"),
    [
        pytest.param("float32", by_allreduce(), id="float32"),
        pytest.param("float32", by_allreduce(Operation.MEAN), id="mean"),
        pytest.param("float16", by_allreduce(), id="float16"),
        pytest.param("float64", by_allreduce(), id="float64"),
        pytest.param("float32", by_allreduce(precision="int16"), id="int16 lanes"),
        pytest.param("float32", by_allreduce(precision="int8"), id="int8 lanes"),
        pytest.param("float32", by_allreduce(precision="int4"), id="int4 lanes"),
        pytest.param("int32", by_allreduce(), id="int32"),
        pytest.param("int16", by_allreduce(), id="int16"),
        pytest.param("int8", by_allreduce(), id="int8"),
        pytest.param(
            "float64",
            lambda array, rank: plans.broadcast(array, 1, None, None, rank=rank, world_size=WORLD),
            id="broadcast",
        ),
        pytest.param(
            "float32",
            lambda array, rank: plans.reduce_scatter(
                array, Operation.SUM, None, None, None, rank=rank, world_size=WORLD
            ),
            id="reduce_scatter",
        ),
        pytest.param(
            "float32",
            lambda array, rank: plans.allgather(
                array[: 700 * rank],
                range(0, 700 * WORLD, 700),
                None,
                None,
                rank=rank,
                world_size=WORLD,
            ),
            id="allgather",
        ),
        pytest.param("float32", sparse_sum, id="sparse"),
        pytest.param("float32", lambda array, rank: plans.barrier(), id="barrier"),
    ],
)
def test_results_are_those_of_the_switch_bit_for_bit(
    ring: Ring, rng: np.random.Generator, dtype: str, plan: MakePlan
) -> None:
    arrays = [numbers(rng, dtype, 5000) for _ in range(WORLD)]
    fabric = OneProcess(WORLD, SLOTS, rng)
    by_switch = [plan(array.copy(), rank) for rank, array in enumerate(arrays)]
    for rank, machine in enumerate(fabric.machines):
        machine.submit(started(by_switch[rank], rank, 0))
    while fabric.step():
        pass
    ring.start()
    calls = [ring.ranks[rank].call(plan(array.copy(), rank)) for rank, array in enumerate(arrays)]
    for call in calls:
        call.wait(DEADLINE)
    for rank, expected in zip(ring.ranks, by_switch, strict=True):
        result = rank.plans[0].result()
        assert (result is None) == (expected.result() is None)
        if result is not None:
            assert result.tobytes() == expected.result().tobytes()


def test_more_blocks_than_slots(ring: Ring, rng: np.random.Generator) -> None:
    arrays = [rng.integers(-1000, 1000, 256 * 450 + 3, np.int32) for _ in range(WORLD)]
    ring.start()
    for rank, array in zip(ring.ranks, arrays, strict=True):
        rank.call(summing(array))
    for rank in ring.ranks:
        rank.calls[0].wait(DEADLINE)
        assert np.array_equal(rank.plans[0].result(), sum(arrays))


def test_an_overflow_is_an_error_on_all_ranks_and_breaks_nothing(ring: Ring) -> None:
    array = np.zeros(2000, np.int32)
    array[1500] = 2**30
    ring.start()
    for rank in ring.ranks:
        rank.call(summing(array))
        rank.call(summing(array // 4))
    for rank in ring.ranks:
        with pytest.raises(LaneOverflowError, match="1,280 to 1,535") as error:
            rank.calls[0].wait(DEADLINE)
        assert error.value.block == 1500 // 256
        rank.calls[1].wait(DEADLINE)
        assert rank.plans[1].result()[1500] == WORLD * 2**28


def test_lanes_that_wrap_are_no_overflow(ring: Ring) -> None:
    array = np.full(2000, 2**30 + 7, np.int32)
    ring.start()
    for rank in ring.ranks:
        rank.call(summing(array, "wrap32"))
    for rank in ring.ranks:
        rank.calls[0].wait(DEADLINE)
        assert np.array_equal(rank.plans[0].result(), np.int32(WORLD) * array)


def test_a_ring_of_one_is_no_special_case() -> None:
    alone = Ring(1)
    try:
        alone.start()
        array = np.arange(700, dtype=np.float32)
        call = alone.ranks[0].call(plans.allreduce(array, Operation.SUM, None, None, world_size=1))
        call.wait(DEADLINE)
        assert np.array_equal(alone.ranks[0].plans[0].result(), np.arange(700))
    finally:
        alone.close()


# -- Agreement -----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 3, 11, 30, 45, 60, 90])
def test_what_a_switch_has_begun_ends_on_the_ring(
    ring: Ring, rng: np.random.Generator, steps: int
) -> None:
    """In place, with rounding errors to keep; some ranks have had results that others lack."""
    arrays = rng.standard_normal((WORLD, 9 * 1024)).astype(np.float32)
    arrays[1, 1024 + 5] = np.inf
    arrays[0, 3 * 1024 : 6 * 1024] = 0

    def called(rank: int, array: npt.NDArray[Any], residual: npt.NDArray[Any]) -> Any:
        return plans.allreduce(
            array, Operation.MEAN, None, array, "int8", 1, residual, world_size=WORLD
        )

    wanted, wanted_residuals = arrays.copy(), np.zeros_like(arrays)
    fabric = OneProcess(WORLD, SLOTS, rng)
    for rank, machine in enumerate(fabric.machines):
        machine.submit(started(called(rank, wanted[rank], wanted_residuals[rank]), rank, 0))
    while fabric.step():
        pass

    found, residuals = arrays.copy(), np.zeros_like(arrays)
    fabric = OneProcess(WORLD, SLOTS, rng)
    for rank, machine in zip(ring.ranks, fabric.machines, strict=True):
        call = rank.call(called(rank.number, found[rank.number], residuals[rank.number]))
        rank.continue_with(machine)
        machine.submit(call)
    for _ in range(steps):
        fabric.step()
    ring.start()
    for rank in ring.ranks:
        rank.call(summing(np.full(10, 1 + rank.number, np.int32)))
    for rank in ring.ranks:
        for call in rank.calls:
            call.wait(DEADLINE)
        assert (rank.plans[1].result() == 6).all()
    assert found.tobytes() == wanted.tobytes()
    assert residuals.tobytes() == wanted_residuals.tobytes()


def test_all_go_back_to_the_switch_at_the_same_collective(ring: Ring) -> None:
    ring.start()
    all_sum_up(ring)
    ring.ranks[0].back = ring.ranks[1].back = 9  # the third one cannot yet
    all_sum_up(ring)
    ring.ranks[2].back = 9
    for rank in ring.ranks:
        rank.call(summing(np.ones(300, np.int32)))
    assert ring.ends() == ["back"] * 3
    for rank in ring.ranks:
        assert not rank.calls[2].done()
        assert rank.call_log.in_flight == [rank.calls[2]]
        assert rank.by_ring == 2


def test_different_collectives_are_a_mismatch_on_all_ranks(ring: Ring) -> None:
    ring.start()
    for rank in ring.ranks:
        rank.call(summing(np.ones(300 + (rank.number == 1), np.int32)))
    for rank, ended in zip(ring.ranks, ring.ends(), strict=True):
        assert isinstance(ended, MismatchError), ended
        with pytest.raises(MismatchError):
            rank.calls[0].wait(0)


# -- Ranks that go or do not come ----------------------------------------------------------------


def test_a_rank_that_leaves_is_named_by_all(ring: Ring) -> None:
    ring.start()
    all_sum_up(ring)
    ring.ranks[1].stop(ClosedError("closed"))
    for rank in (0, 2):
        ring.ranks[rank].call(summing(np.ones(300, np.int32)))
    for ended in ring.ends()[::2]:
        assert isinstance(ended, WorkerLostError), ended
        assert ended.ranks == (1,)
        assert "rank 1 left" in str(ended)


def test_a_rank_that_does_not_come_is_named_at_the_deadline(ring: Ring) -> None:
    """By the others too, who learn of it from the one whose deadline is first."""
    ring.start()
    all_sum_up(ring)
    for rank in (0, 1):
        ring.ranks[rank].call(summing(np.ones(300, np.int32)))
    ring.ranks[1].deadline = time.monotonic() + 0.2
    ring.ranks[1].run.wake()
    for ended in ring.ends():
        assert isinstance(ended, P4ReduceTimeoutError), ended
        assert ended.missing == (2,)


@pytest.mark.parametrize("place", ["before the ring", "in the ring"])
def test_a_connection_that_breaks_ends_the_ring_for_all(ring: Ring, place: str) -> None:
    """As when a process is killed: no rank says why."""
    if place == "in the ring":
        ring.start()
        all_sum_up(ring)
        ring.ranks[0].kill()
    else:
        ring.start(1, 2)
        for rank in (1, 2):
            ring.ranks[rank].deadline = time.monotonic() + 0.3
    for rank in (1, 2):
        ring.ranks[rank].call(summing(np.ones(300, np.int32)))
    for rank in (1, 2):
        ring.ranks[rank].thread.join(DEADLINE)
        ended = ring.ranks[rank].ended
        if place == "in the ring":
            assert isinstance(ended, WorkerLostError), ended
            assert ended.ranks == (0,)
        else:
            assert isinstance(ended, P4ReduceTimeoutError), ended
            assert "form a ring" in str(ended)


# -- Who does not belong -------------------------------------------------------------------------


def test_strangers_get_nowhere(ring: Ring, rng: np.random.Generator) -> None:
    """Silent ones, chatty ones, ranks of another job, and one that replays what it has heard."""
    host, port = parse_host_port(ring.listeners[0].address)
    with contextlib.ExitStack() as strangers:
        for _ in range(3):
            silent = strangers.enter_context(socket.create_connection((host, port)))
        chatty = strangers.enter_context(socket.create_connection((host, port)))
        chatty.sendall(rng.bytes(100_000))
        other = RingNeighbours(
            INCARNATION, WORLD - 1, ring.who[0].addresses, secrets.token_bytes(32)
        )
        intruder = Rank(WORLD - 1, other, RingListener("127.0.0.1", ""))
        intruder.thread.start()
        ring.start()
        for rank in ring.ranks:
            rank.call(summing(np.full(300, 2, np.int32)))
        for rank in ring.ranks:
            rank.calls[0].wait(DEADLINE)
            assert (rank.plans[0].result() == 6).all()
        assert silent.recv(32), "everybody gets a challenge"
        intruder.stop(ClosedError("the test is over"))
        intruder.thread.join(DEADLINE)
        assert isinstance(intruder.ended, ClosedError)


def test_a_listener_without_the_secret_is_refused() -> None:
    """Whoever listens at the next rank's address gets no sums, whatever he answers."""
    secret = secrets.token_bytes(32)
    who = introduction(INCARNATION, 0, 1, TRY)

    def another_secret(sent: bytes) -> bytes:
        return proof(secrets.token_bytes(32), b"accept", sent)

    def echo(sent: bytes) -> bytes:
        return sent[-32:]  # the proof that the rank itself has sent

    def other_direction(sent: bytes) -> bytes:
        return proof(secret, b"connect", sent)

    def other_challenge(sent: bytes) -> bytes:
        return proof(secret, b"accept", bytes(32) + sent[32:])

    def nothing(sent: bytes) -> bytes:
        return bytes(32)

    for forged in (another_secret, echo, other_direction, other_challenge, nothing):
        with pytest.raises(HandshakeError, match="does not belong to this job"):
            meet(secret, who, forged)
    meet(secret, who, lambda sent: proof(secret, b"accept", sent))


def test_a_listener_without_the_secret_hears_no_sums() -> None:
    """The rank hangs up on it, tries again, and ends with an error at its deadline."""
    ring = Ring(2)
    ring.listeners[1].close()
    host, port = parse_host_port(ring.listeners[1].address)
    heard: list[bytes] = []

    def impostor(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listening.accept()
                with peer:
                    peer.settimeout(DEADLINE)
                    peer.sendall(bytes(32))
                    sent = received(peer, _GREETING)
                    peer.sendall(proof(bytes(32), b"accept", bytes(32) + sent))
                    heard.append(received(peer, 1))

    with socket.create_server((host, port)) as listening:
        thread = threading.Thread(target=impostor, args=(listening,), daemon=True)
        thread.start()
        ring.start(0)
        ring.ranks[0].call(summing(np.ones(300, np.int32)))
        wait_for(lambda: len(heard) > 1, "it tries again")
        ring.ranks[0].deadline = time.monotonic()
        ring.ranks[0].run.wake()
        ring.ranks[0].thread.join(DEADLINE)
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(DEADLINE)
    ring.close()
    assert isinstance(ring.ranks[0].ended, P4ReduceTimeoutError)
    assert set(heard) == {b""}


def test_a_rank_without_the_secret_is_refused() -> None:
    """Whoever connects as the rank before is not taken for it, whatever he sends."""
    secret = secrets.token_bytes(32)
    who = introduction(INCARNATION, 0, 1, TRY)
    recorded: list[bytes] = []

    def right(challenge: bytes) -> bytes:
        greeting = who + secrets.token_bytes(32)
        recorded.append(greeting + proof(secret, b"connect", challenge + greeting))
        return recorded[-1]

    def another_secret(challenge: bytes) -> bytes:
        greeting = who + challenge
        return greeting + proof(secrets.token_bytes(32), b"connect", challenge + greeting)

    def other_direction(challenge: bytes) -> bytes:
        greeting = who + challenge
        return greeting + proof(secret, b"accept", challenge + greeting)

    def replayed(challenge: bytes) -> bytes:
        return recorded[0]

    def nothing(challenge: bytes) -> bytes:
        return who + bytes(64)

    assert knock(secret, who, right) is None
    for forged in (another_secret, other_direction, replayed, nothing):
        assert isinstance(knock(secret, who, forged), HandshakeError), forged.__name__


_GREETING = 25 + 32 + 32  # bytes: introduction, challenge, proof


def received(peer: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer where the other side hangs up."""
    data = b""
    while len(data) < count and (part := peer.recv(count - len(data))):
        data += part
    return data


def proof(secret: bytes, direction: bytes, sent: bytes) -> bytes:
    """Of what both sides have sent: the listener's challenge, and what came after it."""
    return hmac.digest(secret, direction + sent[32:57] + sent[:32] + sent[57:89], "sha256")


def meet(secret: bytes, who: bytes, prove: Callable[[bytes], bytes]) -> None:
    """Let a rank connect to a listener that proves by `prove`. Raises what the rank raises."""

    async def listener(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        challenge = secrets.token_bytes(32)
        writer.write(challenge)
        writer.write(prove(challenge + await reader.readexactly(_GREETING)))
        await writer.drain()
        writer.close()

    async def both() -> None:
        server = await asyncio.start_server(listener, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            await asyncio.wait_for(connect((reader, writer), secret, who), DEADLINE)
        finally:
            writer.close()
            server.close()

    asyncio.run(both())


def knock(secret: bytes, expected: bytes, greet: Callable[[bytes], bytes]) -> BaseException | None:
    """Let somebody who greets by `greet` connect to a rank; what the rank raises."""

    async def both() -> BaseException | None:
        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        async def listener(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await accept((reader, writer), secret, expected)
                ended.set_result(None)
            except Exception as error:
                ended.set_result(error)
            writer.close()

        server = await asyncio.start_server(listener, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            writer.write(greet(await reader.readexactly(32)))
            return await asyncio.wait_for(ended, DEADLINE)
        finally:
            writer.close()
            server.close()

    return asyncio.run(both())


def test_a_rank_of_another_incarnation_is_refused() -> None:
    """With the right secret, but from an earlier life."""
    ring = Ring(2)
    try:
        old = RingNeighbours(INCARNATION - 1, 1, ring.who[1].addresses, ring.secret)
        late = Rank(1, old, ring.listeners[1])
        late.deadline = time.monotonic() + 0.5
        ring.start(0)
        late.thread.start()
        late.thread.join(DEADLINE)
        assert isinstance(late.ended, P4ReduceTimeoutError)
        assert "form a ring" in str(late.ended)
        assert ring.ranks[0].ended is None
    finally:
        ring.close()


# -- When a job begins ---------------------------------------------------------------------------


def test_a_ring_that_cannot_come_about_shows_when_the_job_begins(ring: Ring) -> None:
    with pytest.raises(P4ReduceTimeoutError, match=r"cannot reach rank 2 at 127\.0\.0\.1:\d+"):
        try_ring(ring.who[1], ring.listeners[1], 0.3)


def test_all_ranks_need_one() -> None:
    who = RingNeighbours(INCARNATION, 0, ("127.0.0.1:5", "", ""), b"")
    with pytest.raises(ConfigurationError, match="ranks 1, 2 without"):
        try_ring(who, RingListener("127.0.0.1", ""), 1.0)


@pytest.mark.parametrize("text", ["", ":5", "host:x", "host:70000", "[::1", "[::1]x", "host:-1"])
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"cannot listen at {text!r}")):
        RingListener(None, text)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'192\.0\.2\.1'.*P4REDUCE_RING_ADDRESS"):
        RingListener("192.0.2.1", "")


@pytest.mark.parametrize("text", ["0.0.0.0", "0.0.0.0:7", "[::]", "[::]:7", "fe80::1%lo"])
def test_an_address_that_others_cannot_reach_is_refused(text: str) -> None:
    says = re.escape(f"cannot listen at {text!r} for the ring: other hosts cannot reach")
    with pytest.raises(ConfigurationError, match=says + ".*P4REDUCE_RING_ADDRESS"):
        RingListener(text, "")
