# SPDX-License-Identifier: Apache-2.0
"""Random and mutilated frames: no program ever raises, and every frame is accounted for."""

from __future__ import annotations

import random

import pytest
from p4reduce_switch.state.multicast import Replica
from pipeline_programs import AGGREGATION, NAMES, config, make

pytestmark = pytest.mark.usefixtures("engine")

SIZES = (0, 1, 2, 13, 14, 15, 33, 34, 42, 60, 77, 78, 79, 300, 783, 1101, 1102, 1103, 1500, 9000)


def frames(generator: random.Random, count: int) -> list[bytes]:
    """Random bytes, and random bytes that look like the aggregation protocol at the start."""
    head = bytes.fromhex(
        "027034726564 020000000001 0800"
        "45000440 00000000 4011 0000 0a4d0001 0a4dfffe"
        "9c40bee0042c0000"
        "1001 0000 00000007 0000 00 00 00000001 00000000 00000001 00000063 0000000000000000"
    )
    found = []
    for _ in range(count):
        size = generator.choice(SIZES)
        frame = bytearray(generator.randbytes(size))
        if generator.random() < 0.5:
            keep = min(size, generator.randrange(len(head) + 1))
            frame[:keep] = head[:keep]
        for _ in range(generator.randrange(3)):
            if frame:
                frame[generator.randrange(min(len(frame), 80))] = generator.choice((0, 1, 255))
        found.append(bytes(frame))
    return found


@pytest.mark.parametrize("name", [*NAMES, "p4reduce"])
def test_random_frames(name: str, engine: str) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    pipeline = make(AGGREGATION.read_bytes() if name == "p4reduce" else config(name))
    for group in range(1, 5):
        pipeline.multicast.insert(group, [Replica(port, port) for port in range(group + 1)])
    sent = frames(generator, 1500 if engine == "native" else 200)
    received = 0
    for frame in sent:
        copies = pipeline.process(generator.choice((0, 1, 5, 255, 511)), frame)
        received += len(copies)
        for port, out in copies:
            assert 0 <= port < 512
            # Out of a queue comes an earlier frame than the one that has just come in.
            longest = max(SIZES) if name == "queues" else len(frame)
            assert len(out) <= longest + 512
    assert pipeline.stats.frames_in == len(sent)
    assert pipeline.stats.frames_out == received
    for register in pipeline.registers.values():
        assert all(0 <= cell < 1 << register.width for cell in register.cells)
