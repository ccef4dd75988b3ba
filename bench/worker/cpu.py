# SPDX-License-Identifier: Apache-2.0
"""What a block costs a worker: CPU time of the progress thread, in microseconds.

A process of its own stands for switch and other ranks: it answers each contribution over a Unix
socket, in batches, and adds nothing up. The worker is the real one: engine, slots, quantiser,
transport; once with a frame per message, once with frames through shared memory. Two loads:

- exchange: each block is quantised and sent, its sum received and written to the output;
- receive: this rank has nothing but zeros and answers each round without payload, so that only
  the sums of others cost anything.

What sending a block costs follows by subtraction. Preparing a collective (exponents and zeros, in
the caller's thread) and the goodput of the whole are given as well. Both depend on how many frames
come at once, which the number of slots limits.

    python -m bench.worker.cpu [--megabytes 8] [--repeat 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from p4reduce.errors import SwitchUnreachableError
from p4reduce.protocol.slots import SlotMachine
from p4reduce.session.engine import Engine
from p4reduce.session.port import WorkerPort
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.transport.link import FramesOverLink
from p4reduce.wire import format as wire
from p4reduce.wire.calls import Operation
from p4reduce.wire.frames import FrameBuffer
from p4reduce_native.link import Link, LinkKind, offers

from bench.program import Option, Row, read_options, run, tell
from bench.switch.job import JOB, RANKS, SWITCH, endpoint

RANK = 0
SEED = 1
LINKS = {LinkKind.SINGLE: "messages", LinkKind.SHARED: "shared memory"}


def answer_all(transport: FramesOverLink, slots: int, blocks: int) -> None:
    """Be the switch, until the other side hangs up.

    A rank that announces no block is told that another one has them all.
    """
    answers = FrameBuffer(len(transport.received))
    header = wire.header_bytes(kind=wire.FrameKind.RESULT, rank=RANK, job=JOB)
    shapes = [
        np.frombuffer(wire.template(SWITCH, endpoint(RANK), header, bytes(size)), np.uint8)
        for size in (0, wire.PAYLOAD_BYTES)
    ]
    try:
        while True:
            transport.wait(30.0)
            while count := transport.receive():
                contributions = transport.received.records[:count]
                results = answers.records[:count]
                block = contributions["block"].astype(np.int64)
                following = contributions["next_block"].astype(np.int64)
                stripe = contributions["slot"].astype(np.int64)
                from_others = np.where(block == wire.NO_BLOCK, stripe, block + slots)
                from_others[from_others >= blocks] = wire.NO_BLOCK
                filled = block != wire.NO_BLOCK
                for with_payload, shape in enumerate(shapes):
                    rows = np.flatnonzero(filled == with_payload)
                    answers.frames[rows, : wire.AGG_OFFSET] = shape[: wire.AGG_OFFSET]
                    answers.lengths[rows] = len(shape)
                agg = slice(wire.AGG_OFFSET, wire.PAYLOAD_OFFSET)
                answers.frames[:count, agg] = transport.received.frames[:count, agg]
                answers.payload[:count] = transport.received.payload[:count]
                results["version_kind"] = wire.AGGREGATION_VERSION << 4 | wire.FrameKind.RESULT
                results["flags"] = np.where(filled, int(wire.Flag.PAYLOAD), 0)
                results["next_block"] = np.minimum(following, from_others)
                results["next_exponent"] = np.maximum(results["next_exponent"], 127)
                rows = np.arange(count)
                while len(rows):
                    rows = rows[transport.send(answers, rows) :]
                    if len(rows):
                        transport.wait(30.0, writable=True)
    except SwitchUnreachableError:
        transport.close()


def run_one(array: npt.NDArray[Any], slots: int, kind: LinkKind) -> tuple[float, float, float]:
    """One collective; CPU seconds of the thread, of preparing, and seconds."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (near, far):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)

    def peer() -> None:
        near.close()
        answer_all(FramesOverLink("peer", Link.accept(far, offers(kind))), slots, blocks)

    blocks = -(-len(array) // wire.Format.INT32.lanes)
    process = multiprocessing.get_context("fork").Process(target=peer, daemon=True)
    process.start()
    far.close()
    machine = SlotMachine(
        slots=slots, job=JOB, rank=RANK, world_size=RANKS, here=endpoint(RANK), switch=SWITCH
    )
    transport = FramesOverLink("bench", Link.connect(near, offers(kind), 10.0))
    share = WorkerPort.alone(transport, RANK)
    engine = Engine(machine, share)
    try:
        out = np.empty_like(array)
        plan = plans.allreduce(array, Operation.SUM, None, out, world_size=RANKS)
        before = time.thread_time()
        start = time.perf_counter()
        collective = Collective(
            plan.call, plan.source, plan.target, sequence=0, slots=slots, timeout=120.0
        )
        prepared = time.thread_time() - before
        engine.submit(collective)
        collective.wait(None)
        seconds = time.perf_counter() - start
        time.sleep(0.02)  # until the thread has noted its time
        return share.port.cpu_seconds, prepared, seconds
    finally:
        engine.stop(10.0)
        process.join(10.0)


def measure(dtype: type, slots: int, megabytes: float, repeat: int, kind: LinkKind) -> Row:
    """Take the best of `repeat` runs: the machine may have other things to do."""
    count = int(megabytes * 1e6) // np.dtype(dtype).itemsize
    rng = np.random.default_rng(SEED)
    data: npt.NDArray[Any] = (1000 * rng.standard_normal(count)).astype(dtype)
    each = 1e6 / -(-count // wire.Format.INT32.lanes)  # microseconds for a block
    exchanges = [run_one(data, slots, kind) for _ in range(repeat)]
    exchange, prepare, _ = min(exchanges)
    receive = min(run_one(np.zeros_like(data), slots, kind) for _ in range(repeat))[0]
    return {
        "name": f"{np.dtype(dtype).name}, {slots} slots, {LINKS[kind]}",
        "exchange_us": exchange * each,
        "receive_us": receive * each,
        "send_us": (exchange - receive) * each,
        "prepare_us": prepare * each,
        "goodput_megabytes_per_second": data.nbytes / min(one[2] for one in exchanges) / 1e6,
    }


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Measure all dtypes and numbers of slots, over both links."""
    floats = [(np.float32, slots) for slots in (32, 8, 128)]
    cases = (*floats, (np.float64, 32), (np.float16, 32), (np.int32, 32))
    for (dtype, slots), kind in itertools.product(cases, LINKS):
        yield measure(dtype, slots, options.megabytes, options.repeat, kind)


def main() -> None:
    options = read_options(
        __doc__,
        megabytes=Option(8.0, "of each tensor"),
        repeat=Option(5, "runs, of which the best counts"),
    )
    tell(options, rows(options))


if __name__ == "__main__":
    run(main)
