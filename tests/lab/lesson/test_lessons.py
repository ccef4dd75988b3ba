# SPDX-License-Identifier: Apache-2.0
"""The lessons: each as a script, what can be done beside it, and that tracing changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from click.testing import CliRunner
from p4reduce.wire import format as wire
from p4reduce_controller.fabric.compiled_program import compiled_files
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.topology.given import CPU_PORT
from p4reduce_lab.cli import commands as lab
from p4reduce_lab.errors import LabError
from p4reduce_lab.lesson.commands import Commands
from p4reduce_lab.lesson.lessons import LESSONS, Lesson
from p4reduce_lab.lesson.terminal import run
from p4reduce_lab.lesson.world import REGISTERS, LessonWorld, header
from p4reduce_switch.pipeline import Pipeline

EACH = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
ONES, TENS = np.array([1, 2, 3, 4], np.int32), np.array([10, 20, 30, 40], np.int32)


def numbers(world: LessonWorld, rank: int) -> list[int]:
    found = world.ranks[rank].result
    assert found is not None, world.ranks[rank].state
    return [int(number) for number in found]


@EACH
def test_a_lesson_goes_as_it_says(lesson: Lesson) -> None:
    commands = Commands(lesson.begin())
    for scene in lesson.scenes:
        commands.last = None
        commands.do(scene.command)
        if scene.outcome is not None:
            assert commands.last is not None
            assert commands.last.outcome is scene.outcome, scene
    for rank, first in lesson.results.items():
        found = commands.world.ranks[rank].result
        assert (found is None) == (first is None), commands.world.ranks[rank].state
        if found is not None:
            assert int(found[0]) == first
    assert commands.world.flying == []


def played(name: str) -> str:
    """All that a lesson says."""
    said: list[str] = []
    run(next(lesson for lesson in LESSONS if lesson.name == name), said.append)
    return "\n".join(said)


def test_what_the_lessons_teach_is_to_be_seen() -> None:
    lost = played("lost-result")
    after = lost[lost.index("> let 9") :]  # rank 0 is in round 2, rank 1 without round 1's result
    overwritten, kept = [row for row in after.splitlines() if row.startswith("  copy ")][:2]
    assert "copy 0*" in overwritten
    assert "rounds 0 => 2" in overwritten
    assert "rounds 1, " in kept
    assert kept.endswith("sums0 11 22 33 44 …")
    repeated = after[after.index("counts it as result-repeated") :]
    assert "sent: #11  switch -> rank 1  RESULT" in repeated
    assert "lanes 11 22 33 44 …" in repeated
    assert "counts it as stale" in played("late-duplicate")
    zeros = played("zeros")
    assert [f"block {at} next" in zeros for at in range(4)] == [False, True, False, True]
    overflow = played("overflow")
    assert "all_flags - => OVERFLOW" in overflow
    assert overflow.count("a sum left the range of int8") == 2


# -- What can be done beside the script ---------------------------------------------------------


def test_a_forged_frame_is_not_admitted() -> None:
    world = LessonWorld([ONES, TENS])
    for change in ({"job": 8}, {"rank": 1}):  # another job, and another rank from rank 0's port
        forged = world.forge(1, **change)
        assert world.let(forged.number).outcome is FrameOutcome.NOT_ADMITTED
    Commands(world).do("go")
    assert numbers(world, 0) == [11, 22, 33, 44]


@pytest.mark.parametrize("change", ["slot=60000", "kind=9", "version=7", "rank=255"])
def test_any_forged_header_is_shown(change: str) -> None:
    commands = Commands(LessonWorld([ONES, TENS]))
    shown = "\n".join([*commands.do(f"forge 1 {change}"), *commands.do("let 3")])
    assert "#3" in shown
    if change == "kind=9":
        assert "KIND 9" in shown


def test_a_dead_rank_sends_and_takes_nothing() -> None:
    world = LessonWorld([ONES, TENS])
    world.kill(1)
    assert world.repeat(1) == []
    world.drop(2)
    world.let(1)
    for _ in range(3):
        [again] = world.repeat(0)
        step = world.let(again.number)
        assert step.outcome is FrameOutcome.STATUS_SENT
        world.let(step.sent[0].number)
    assert world.ranks[0].state == "waits for round 0"
    assert world.ranks[1].state == "dead"


def test_any_order_of_loss_and_copies_gives_the_sum() -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    world = LessonWorld([ONES, TENS, ONES])
    for _ in range(4000):
        if all(rank.result is not None for rank in world.ranks):
            break
        if not world.flying or draw.random() < 0.1:
            world.repeat(draw.randrange(3))
            continue
        number = draw.choice(world.flying).number
        draw.choice([world.let, world.let, world.let, world.drop, world.duplicate])(number)
    for rank in range(3):
        assert numbers(world, rank) == [12, 24, 36, 48], f"seed {seed}"


def test_ranks_that_do_not_agree_end_with_an_error() -> None:
    world = LessonWorld([ONES, TENS.astype(np.float32)])
    Commands(world).do("go")
    assert all("error: " in rank.state for rank in world.ranks)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("let 99", "there is no frame #99 on its way; there are: #1, #2"),
        ("let", "it is: let N"),
        ("let one", "'one' is not a number"),
        (
            "forge 1 colour=3",
            "no field colour; `show 1` lists the fields",
        ),
        ("forge 1 slot=70000", "slot has 16 bits, which do not hold 70000"),
        ("forge 1 slot", "'slot' is not FIELD=VALUE"),
        ("repeat 7", "there is no rank 7; ranks are 0 to 1"),
        ("show 7", "frame #7 is neither on its way nor the last one"),
        ("jump", "there is no command 'jump'; help lists them"),
        ("help let", "it is: help"),
        ("break colour 1", "'colour' is not a kind of place"),
        ("break table nowhere", "there is no table 'nowhere'"),
        ("unbreak 4", "there is no breakpoint 4"),
        ("step", "the switch holds no frame"),
        ("inspect", "the switch holds no frame"),
    ],
)
def test_what_is_wrong_is_said(typed: str, said: str) -> None:
    with pytest.raises(LabError) as caught:
        Commands(LessonWorld([ONES, TENS])).do(typed)
    assert said in str(caught.value)


def test_each_step_says_why_and_each_register_what_for() -> None:
    for lesson in LESSONS:
        assert all(scene.text for scene in lesson.scenes), lesson.name
    said = "\n".join(Commands(LessonWorld([ONES, TENS])).do("registers"))
    for name in REGISTERS:
        assert f"\n  {name} " in f"\n{said}"


def test_nobody_gets_two_rounds_ahead() -> None:
    """What lesson 3 says to try: two copies are enough."""
    commands = Commands(LESSONS[2].begin())
    for scene in LESSONS[2].scenes[:8]:
        commands.do(scene.command)
    for _ in range(5):
        commands.do("go")
        commands.do("repeat 0")
    assert [copy["rounds"] for copy in commands.world.registers(0)] == [2, 1]
    assert commands.world.ranks[0].result is None


def test_a_header_in_words_and_bytes() -> None:
    commands = Commands(LessonWorld([ONES, TENS]))
    shown = "\n".join(commands.do("show 1"))
    data = commands.world.flying[0].data
    tag = header(data)["tag"]
    assert f"{tag:08x}" == data[wire.AGG_OFFSET + 24 : wire.AGG_OFFSET + 28].hex()
    for part in ("00 00 00 07              job           7", "block         none", f"{tag}"):
        assert part in shown


# -- The debugger -------------------------------------------------------------------------------


def test_a_frame_is_held_looked_at_and_let_go_on() -> None:
    commands = Commands(LessonWorld([ONES, TENS]))
    commands.do("break table admission")
    commands.do("break line slots.p4:44")
    assert "holds it at table admission" in "\n".join(commands.do("let 1"))
    assert commands.finished == ""
    assert "  agg.job = 7 (0x7)" in commands.do("inspect agg.")
    assert "holds it at action grant" in "\n".join(commands.do("step"))
    said = "\n".join(commands.do("continue"))
    assert "before slots.p4:44: jobs.write(meta.index, hdr.agg.job)" in said
    assert commands.world.registers(0)[0]["jobs"] == 0  # before the line
    assert "counts it as round-opened" in "\n".join(commands.do("continue"))
    assert commands.world.registers(0)[0]["jobs"] == 7
    assert commands.finished == "let 1"
    for number in ("1", "2"):
        commands.do(f"unbreak {number}")
    commands.do("go")
    assert numbers(commands.world, 0) == [11, 22, 33, 44]


def test_a_breakpoint_at_a_header_value() -> None:
    commands = Commands(LessonWorld([ONES, TENS]))
    commands.do("break field agg.rank 1")
    assert "counts it as" in "\n".join(commands.do("let 1"))
    assert "(field agg.rank 0x1)" in "\n".join(commands.do("let 2"))
    with pytest.raises(LabError, match="no frame #2 on its way"):
        commands.world.duplicate(2)  # the switch holds it
    commands.world.close()


def test_a_held_frame_takes_the_proposed_step_when_it_is_through() -> None:
    typed = iter(["break table admission", "let 1", "continue", "quit"])
    said: list[str] = []
    run(LESSONS[0], said.append, lambda prompt: next(typed))
    assert "The switch has stored that rank 0 was heard" in " ".join(said)


# -- The terminal -------------------------------------------------------------------------------


def asker(*typed: str) -> Callable[[str], str]:
    left: Iterator[str] = iter(typed)

    def ask(_: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return ask


def test_enter_takes_what_is_proposed() -> None:
    said: list[str] = []
    lesson = LESSONS[0]
    commands = run(lesson, said.append, asker(*[""] * len(lesson.scenes), "frames", "quit"))
    assert numbers(commands.world, 1) == [11, 22, 33, 44]
    assert said[-1] == "no frame is on its way"


def test_mistakes_and_other_steps_do_not_end_it_and_restart_begins_again() -> None:
    said: list[str] = []
    typed = ["foo", "drop 1", "", "restart", "let 1", ""]
    commands = run(LESSONS[0], said.append, asker(*typed))
    assert [held.number for held in commands.world.flying] == [3, 4]
    assert "  there is no command 'foo'; help lists them" in said
    assert "`restart` begins the lesson again." in said


def test_the_command() -> None:
    listed = CliRunner().invoke(lab, ["lesson"])
    assert listed.output.count("\n") == len(LESSONS) == 6
    done = CliRunner().invoke(lab, ["lesson", "1", "--play"])
    assert done.exit_code == 0
    assert "rank 1: done: 11, 22, 33, 44" in done.output
    assert CliRunner().invoke(lab, ["lesson", "7"]).exit_code == 2
    typed = CliRunner().invoke(lab, ["lesson", "2"], input="\n\nquit\n")
    assert typed.exit_code == 0
    assert "lost: #2" in typed.output


# -- Tracing ------------------------------------------------------------------------------------


def test_tracing_changes_nothing() -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    world = LessonWorld([ONES, TENS])
    plain = Pipeline(compiled_files()[0].read_bytes(), cpu_port=CPU_PORT)
    traced = world.switch.pipeline
    for name, table in traced.tables.items():
        for entry in table.entries():
            if not entry.is_const:
                plain.tables[name].insert(entry)
    for group, replicas in traced.multicast.all().items():
        plain.multicast.insert(group, replicas)
    frames = [held.data for held in world.flying]
    for _ in range(300):
        data = bytearray(draw.choice(frames))
        for _ in range(draw.randrange(3)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        port = draw.randrange(1, 4)
        out = world.switch.process(port, bytes(data)).out
        assert out == plain.process(port, bytes(data)), f"seed {seed}"
        for register in traced.registers:
            assert traced.registers[register].cells == plain.registers[register].cells


def test_who_leaves_the_steps_is_told_and_can_begin_again() -> None:
    lesson = next(each for each in LESSONS if each.name == "lost-result")
    said: list[str] = []
    # Rank 0 repeats where rank 1 is to: frame #10 is another one than the lesson speaks of.
    steps = [""] * 9
    commands = run(lesson, said.append, asker(*steps, "repeat 0", "", "ranks", "quit"))
    told = said.index("You have left the lesson's steps: from here on try what you like.")
    assert said[told + 2 :] == [
        "rank 0: waits for round 2 (block 1)",
        "rank 1: waits for round 1 (block 0)",
    ]
    assert [held.number for held in commands.world.flying] == [10]
