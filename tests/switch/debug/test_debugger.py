# SPDX-License-Identifier: Apache-2.0
"""The debugger: where it holds a packet, what it shows there, and that it changes nothing else."""

from __future__ import annotations

import queue
import random
import re
import threading
from collections.abc import Iterator

import pytest
from p4reduce_switch.debug.breakpoints import Breakpoint, parse_breakpoint
from p4reduce_switch.debug.debugger import Debugger, NotStoppedError, Stop
from p4reduce_switch.debug.pipeline import DebugPipeline
from p4reduce_switch.pipeline import Pipeline
from pipeline_programs import NAMES, config

WITHIN_S = 20.0
PORT, KIND, LEARN_NOTHING = 255, 8, 0


class Session:
    """A program of tests/switch/programs under the debugger, with a thread that sends it frames."""

    def __init__(self, program: str) -> None:
        self.debugger = Debugger()
        self.pipeline = DebugPipeline(config(program), self.debugger)
        self.stops: queue.Queue[Stop] = queue.Queue()
        self.debugger.watch(self.stops.put)
        self._sent: list[threading.Thread] = []
        self.out: list[tuple[int, bytes]] = []

    def send(self, frame: bytes) -> None:
        def run() -> None:
            self.out += self.pipeline.process(0, frame)

        self._sent.append(threading.Thread(target=run, daemon=True))
        self._sent[-1].start()

    def stop(self) -> Stop:
        """The next packet that is held."""
        return self.stops.get(timeout=WITHIN_S)

    def finish(self) -> list[tuple[int, bytes]]:
        """What came of the frames, when nothing holds them any more."""
        for thread in self._sent:
            thread.join(WITHIN_S)
            assert not thread.is_alive(), "a packet is still held"
        return self.out

    def add(self, text: str) -> int:
        return self.debugger.add(parse_breakpoint(text))


@pytest.fixture
def digests() -> Iterator[Session]:
    session = Session("tuple_digests")
    yield session
    session.debugger.unwatch()


FRAME = bytes((KIND, 0)) + (0x107).to_bytes(2, "big") + bytes.fromhex("020304050607") + b"tail"


def test_table_and_action(digests: Session) -> None:
    digests.add("table I.by_kind")
    digests.add("action I.learn")
    digests.send(FRAME)
    stop = digests.stop()
    assert (stop.point.kind, stop.point.name, stop.why) == ("table", "I.by_kind", "table I.by_kind")
    assert stop.values["a"] is True
    assert (stop.values["a.which"], stop.values["a.answer"]) == (KIND, 1)
    assert digests.debugger.stop is stop
    digests.debugger.go_on()
    assert digests.stop().point.name == "I.learn"
    digests.debugger.go_on()
    assert digests.finish() == [(PORT, FRAME[:1] + b"\1" + FRAME[2:])]


def test_a_line_and_steps(digests: Session) -> None:
    digests.add("line tuple_digests.p4:16")
    digests.send(FRAME)
    stop = digests.stop()
    assert (stop.point.file.rpartition("/")[2], stop.point.line) == ("tuple_digests.p4", 16)
    digests.debugger.go_on(steps=True)
    assert digests.stop().why in ("step", "line tuple_digests.p4:16")
    digests.debugger.unwatch()
    assert len(digests.finish()) == 1


def test_a_field_takes_a_value(digests: Session) -> None:
    digests.add("field a.answer 1")
    for _ in range(2):  # once for each packet, however many points come after
        digests.send(FRAME)
        assert digests.stop().why == "field a.answer 0x1"
        digests.debugger.go_on()
        digests.finish()
    assert digests.stops.empty()


def test_pause_and_steps_through_parser_and_egress(digests: Session) -> None:
    digests.debugger.pause()
    digests.send(FRAME)
    seen = []
    while not seen or seen[-1] != ("control", "egress"):
        seen.append((stop := digests.stop()).point.kind and (stop.point.kind, stop.point.name))
        digests.debugger.go_on(steps=seen[-1] != ("control", "egress"))
    assert seen[:3] == [("control", "parser"), ("state", "start"), ("control", "ingress")]
    assert ("table", "I.by_kind") in seen
    assert len(digests.finish()) == 1


def test_headers_that_are_not_there_have_no_fields() -> None:
    session = Session("header_copies")
    session.add("control egress")
    session.send(bytes((0, 0)) + (0x123 << 4).to_bytes(2, "big"))
    values = session.stop().values
    assert (values["labels[0]"], values["labels[0].value"], values["labels[1]"]) == (True, 0x123, 0)
    assert "labels[1].value" not in values
    session.debugger.unwatch()
    session.finish()


def test_registers() -> None:
    session = Session("state")
    name, register = next(iter(session.pipeline.registers.items()))
    register.cells[1] = 5
    session.add("control ingress")
    session.send(bytes(64))
    session.stop()
    assert session.debugger.register(name, 1, 2) == list(register.cells[1:3])
    assert session.debugger.register(name.partition(".")[2], 1, 1) == [5]
    with pytest.raises(ValueError, match="no register 'nothing'; there are "):
        session.debugger.register("nothing", 0, 1)
    with pytest.raises(LookupError, match="has the cells 0 to"):
        session.debugger.register(name, 1 << 30, 1)
    session.debugger.unwatch()
    session.finish()


def test_nothing_is_held_while_nobody_watches(digests: Session) -> None:
    digests.add("table I.by_kind")
    digests.debugger.unwatch()
    digests.send(FRAME)
    assert len(digests.finish()) == 1
    assert digests.debugger.breakpoints == {}
    for ask in (digests.debugger.go_on, lambda: digests.debugger.stop):
        with pytest.raises(NotStoppedError, match="no packet is held"):
            ask()


def test_a_breakpoint_that_is_deleted(digests: Session) -> None:
    first, second = digests.add("table I.by_kind"), digests.add("control egress")
    digests.debugger.delete(first)
    assert digests.debugger.breakpoints == {second: "control egress"}
    with pytest.raises(ValueError, match=f"no breakpoint {first}"):
        digests.debugger.delete(first)
    digests.send(FRAME)
    assert digests.stop().point.name == "egress"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is not a place to stop: table NAME"),
        ("table", "'table' is not a place to stop"),
        ("tables x", "'tables' is not a kind of place"),
        ("line x", "'x' is not the number of a line"),
        ("field a.answer", "'' is not a number: field NAME VALUE"),
        ("field a.answer one", "'one' is not a number"),
        ("table I.other", "there is no table 'I.other'; there are I.by_kind"),
        ("field a.nothing 1", "there is no field 'a.nothing'; there are a.address"),
        ("state end", "there is no state 'end'; there are start"),
        ("line nosuch.p4:3", "the program has no code from a file 'nosuch.p4'; its files are "),
        ("line tuple_digests.p4:33", "there is no code at tuple_digests.p4:33; the nearest is at "),
        ("line 9999", "there is no code at line 9999; the nearest is at tuple_digests.p4:"),
    ],
)
def test_places_that_there_are_not(digests: Session, text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
        digests.add(text)


def test_a_line_without_code_names_its_neighbours_and_the_tables(digests: Session) -> None:
    """A table is known at its declaration, not where it is applied."""
    with pytest.raises(ValueError, match=r"break table I\.by_kind") as refused:
        digests.add("line tuple_digests.p4:33")
    near = [int(line) for line in re.findall(r"p4:(\d+)", str(refused.value))[1:]]
    assert near
    for line in near:
        assert digests.add(f"line tuple_digests.p4:{line}")


def test_short_names(digests: Session) -> None:
    digests.add("table by_kind")
    digests.add("field hdr.a.answer 1")
    digests.add("action learn")
    assert list(digests.debugger.breakpoints.values()) == [
        "table I.by_kind",
        "field a.answer 0x1",
        "action I.learn",
    ]
    digests.send(FRAME)
    assert digests.stop().why == "field a.answer 0x1"


def test_a_counter() -> None:
    session = Session("state")
    [name, *_] = [one for one, counter in session.pipeline.counters.items() if counter.size > 1]
    session.pipeline.counters[name].write(1, 3, 192)
    session.add("control ingress")
    session.send(bytes(64))
    session.stop()
    assert session.debugger.counter(name, 1, 1) == [(3, 192)]
    with pytest.raises(LookupError, match=f"counter '{name}' has the cells 0 to "):
        session.debugger.counter(name, 1 << 30, 1)
    session.debugger.unwatch()
    session.finish()


def test_how_places_are_shown() -> None:
    for text in ("table I.t", "line 7", "line a/b.p4:7", "field h.f 0x1f", "state start"):
        assert str(parse_breakpoint(text)) == text
    assert parse_breakpoint("field h.f 31") == parse_breakpoint("field h.f 0x1f")
    assert isinstance(parse_breakpoint("control egress"), Breakpoint)


@pytest.mark.parametrize("name", NAMES)
def test_programs_do_the_same_under_the_debugger(name: str) -> None:
    """Every field has a variable there, which must not change what a program does."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    plain = Pipeline(config(name), clock=lambda: 0)
    debugged = DebugPipeline(config(name), Debugger(), clock=lambda: 0)
    for _ in range(60):
        frame = bytes(rng.choice((0, 1, 2, 3, 0xFF, rng.randrange(256))) for _ in range(2))
        frame += rng.randbytes(rng.choice((0, 3, 10, 40, 80)))
        random.seed(seed)
        wanted = plain.process(1, frame)
        random.seed(seed)
        assert debugged.process(1, frame) == wanted, frame.hex()
    assert debugged.stats.as_dict() == plain.stats.as_dict()
