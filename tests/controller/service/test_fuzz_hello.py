# SPDX-License-Identifier: Apache-2.0
"""Packet-ins that no switch hands over: no rank attaches by one, and the next right one does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from controller_harness import Rank, RunningController, SwitchProcess, eventually
from p4.v1 import p4runtime_pb2 as p4rt

pytestmark = pytest.mark.fuzz

EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF)
PORTS = (b"", b"\0", b"\1", b"\2", b"\1\xff", b"\xff\xff", b"\xff" * 300)


def packet(frame: bytes, port: bytes = b"\1", number: int = 1) -> Any:
    message = p4rt.StreamMessageResponse()
    message.packet.payload = frame
    message.packet.metadata.add(metadata_id=number, value=port)
    return message


def hand_over(controller: RunningController, message: Any) -> None:
    """As if it came from the switch, which lets only HELLOs through."""
    controller.client_now().incoming.put(message, timeout=10.0)


def almost(rng: Any, rank: Rank) -> bytes:
    """A HELLO with something wrong that matters: all but a last bit of the nonce, or more."""
    frame = bytearray(rank.hello_frame(nonce=rank.joined.nonce ^ 1 << rng.randrange(64)))
    for _ in range(rng.choice((0, 0, 1, 2, 8))):
        frame[rng.randrange(len(frame) - 8)] = rng.choice((*EDGES, rng.randrange(256)))
    match rng.randrange(8):
        case 0:
            del frame[rng.randrange(len(frame)) :]
        case 1:
            frame += rng.randbytes(rng.choice((1, 100, 9000)))
        case 2:
            return bytes(rng.randbytes(len(frame)))
    return bytes(frame)


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Asserts that nothing was thrown that nobody expected."""
    yield
    assert not [record for record in caplog.get_records("call") if record.exc_info]


def test_hellos_that_are_none(
    controller: RunningController, switch: SwitchProcess, fuzz: Any, quiet: None, bounded: None
) -> None:
    bystanders = controller.running(switch, 2, job="bystander")
    rank = controller.rank(switch, 0, 1, job="wanted")
    rng = fuzz.random
    for _ in fuzz.rounds(40):
        for _ in range(50):
            message = packet(almost(rng, rank), rng.choice(PORTS), rng.choice((1, 1, 1, 0, 2, 99)))
            if rng.random() < 0.1:
                message.packet.metadata.add(metadata_id=1, value=rng.choice(PORTS))
            if rng.random() < 0.05:
                message = p4rt.StreamMessageResponse(error={"canonical_code": 3})
            hand_over(controller, message)
        time.sleep(0.005)
    taken = controller.client_now().incoming
    eventually(taken.empty, "all are taken from the queue")
    assert [member.state for member in controller.job("wanted").members] == ["joined"]
    assert controller.call("GetSwitch").hellos_refused > 0
    assert bystanders[0].heartbeat().state == controller.job("bystander").state
    rank.hello()
    rank.await_ready()


def test_attaching_from_anywhere(
    controller: RunningController, switch: SwitchProcess, fuzz: Any, quiet: None
) -> None:
    """With the right nonce, but from addresses that no worker has: it says so, and continues."""
    for number in fuzz.rounds(15):
        rank = controller.rank(switch, 0, 1, job=f"job{number % 40}")
        for _ in range(5):
            frame = bytearray(rank.hello_frame())
            # The source's MAC and IP address and UDP port are all 0, all 1 or anything.
            for first, size in ((6, 6), (26, 4), (34, 2)):
                if fuzz.random.random() < 0.5:
                    value = fuzz.random.choice((b"\0", b"\xff", fuzz.random.randbytes(1)))
                    frame[first : first + size] = value * size
            hand_over(controller, packet(bytes(frame), fuzz.random.choice(PORTS)))
        hand_over(controller, packet(rank.hello_frame()))
        job = f"job{number % 40}"
        eventually(lambda j=job: controller.job(j).members[0].state != "joined", "one attached")
        rank.leave()
    [rank] = controller.running(switch, 1, job="last")
    rank.leave()
