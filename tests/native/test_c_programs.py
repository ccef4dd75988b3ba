# SPDX-License-Identifier: Apache-2.0
"""Machine code gives what Python gives, byte for byte, for every program that is here."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from c_differential import Filler, Pair, mutilated
from p4reduce_native.compiler import find_compiler
from p4reduce_native.errors import NativeUnavailableError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "switch"))

from pipeline_programs import AGGREGATION, NAMES, config

from bench.switch import job as contributions

try:
    find_compiler()
except NativeUnavailableError as error:
    pytest.skip(f"no machine code: {error}", allow_module_level=True)

PROGRAMS = (*NAMES, "p4rt_features", "p4rt_match_kinds", "p4reduce")
SIZES = (0, 1, 2, 3, 8, 13, 14, 15, 20, 34, 42, 60, 78, 79, 300, 1101, 1102, 1500, 2048, 9000)
FRAMES = 600


def text_of(name: str) -> bytes:
    return AGGREGATION.read_bytes() if name == "p4reduce" else config(name)


def random_frames(generator: random.Random, count: int) -> list[bytes]:
    """Random bytes, most of them small numbers, so that programs take all of their ways."""
    frames = []
    for _ in range(count):
        size = generator.choice(SIZES)
        if generator.random() < 0.4:
            frames.append(generator.randbytes(size))
        else:
            few = bytes(generator.choice((0, 0, 1, 2, 3, 4, 8, 64, 128, 255)) for _ in range(64))
            frames.append((few + generator.randbytes(size))[:size])
    return frames


def conversation(generator: random.Random) -> list[tuple[int, bytes]]:
    """Contributions of four ranks to several rounds: some twice, some without words."""
    sent = []
    for round_ in range(1, 5):
        for slot in range(8):
            for rank in range(contributions.RANKS):
                words = generator.randbytes(1024) if generator.random() < 0.9 else b""
                frame = bytearray(contributions.contribution(rank, slot, round_, words))
                if generator.random() < 0.3:
                    frame[42 + 10] = generator.randrange(4)  # the format
                sent += [(rank + 1, bytes(frame))] * generator.choice((1, 1, 1, 2))
    for _ in range(len(sent) // 10):  # somewhat out of order
        one, other = (generator.randrange(len(sent)) for _ in range(2))
        sent[one], sent[other] = sent[other], sent[one]
    return sent


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_random_frames_and_entries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    pair = Pair(text_of(name), monkeypatch)
    filler = Filler(generator, pair)
    filler.everything()
    copies = 0
    # In "queues" a frame leads to a thousand others.
    for frame in random_frames(generator, FRAMES if name != "queues" else FRAMES // 10):
        pair.now_ns += generator.choice((0, 1000, 10**6, 10**8))
        copies += len(pair.process(generator.choice((0, 1, 2, 5, 255, 511)), frame))
        if generator.random() < 0.1:
            filler.change()
    pair.check()
    assert pair.native.stats.frames_out == copies


def test_contributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """p4reduce's own program, with its state over rounds."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    pair = Pair(text_of("p4reduce"), monkeypatch, cpu_port=255)
    for pipeline in pair.both:
        contributions.admit(pipeline)
    sent = conversation(generator)
    frames = mutilated(generator, (frame for _, frame in sent))
    results = 0
    for (port, _), frame in zip(sent, frames, strict=True):
        pair.now_ns += 1000
        results += len(pair.process(port, frame))
    pair.check()
    assert results > 20


def test_registers_beyond_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that no register has a cell for: the wide variables keep what they had."""
    pair = Pair(text_of("p4reduce"), monkeypatch)
    for pipeline in pair.both:
        contributions.admit(pipeline)
        table = pipeline.tables["admission"]
        for entry in table.entries():
            grant = (*entry.args[:2], 2000, *entry.args[3:])
            table.modify(entry.match, entry.priority, "grant", grant)
    generator = random.Random(1)
    for round_ in range(1, 4):
        for slot in range(32):
            for rank in range(4):
                words = generator.randbytes(1024)
                pair.process(rank + 1, contributions.contribution(rank, slot, round_, words))
    pair.check()


def test_frames_of_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(2)
    frame = contributions.contribution(0, 3, 1, generator.randbytes(1024))
    pair = Pair(text_of("p4reduce"), monkeypatch)
    for pipeline in pair.both:
        contributions.admit(pipeline)
    for length in [*range(120), *range(120, len(frame) + 1, 61)]:
        pair.process(1, frame[:length])
    pair.check()
