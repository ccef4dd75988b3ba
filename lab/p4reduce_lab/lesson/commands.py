# SPDX-License-Identifier: Apache-2.0
"""The commands of a lesson, and their effects."""

from __future__ import annotations

import enum
from collections.abc import Callable

from p4reduce_switch.debug.breakpoints import parse_breakpoint

from p4reduce_lab.errors import LabError
from p4reduce_lab.lesson.describe import came_of, changes, details, legend, line, values
from p4reduce_lab.lesson.world import FrameStep, LessonWorld

MOST = 200  # frames that `go` releases

HELP = """\
  let N             let frame #N go
  drop N            lose it
  dup N             have the network deliver it twice
  delay N           put it behind all others
  forge N F=V ...   make another one like it, with field F of the header V
  repeat R          rank R's timer runs out: it repeats what has no answer
  kill R            end rank R
  go                let all frames go, in order, until there are none
  frames            those that wait
  show N            a frame's header, in words and bytes
  ranks             how far each rank is
  slots             the slots' registers
  registers         what each register is for
  lines             all P4 lines that the last frame ran through
  break PLACE       stop frames in the P4 program: table NAME, action NAME, state NAME,
                    line FILE:N, or field NAME VALUE; without PLACE: list the breakpoints
  unbreak N         forget breakpoint N
  step              let the frame that the switch holds go on to the next line, table or action
  continue          let it go on to the next breakpoint, or to its end
  inspect TEXT      its headers' and variables' values whose names contain TEXT
  restart           begin the lesson again
  quit              end it"""


LEFT_THE_STEPS = (
    "You have left the lesson's steps: from here on try what you like.",
    "`restart` begins the lesson again.",
)


class CommandError(LabError):
    """The command does not exist, or its arguments are wrong."""


class StepState(enum.Enum):
    """What the latest command has made of the step that a lesson proposes."""

    OPEN = enum.auto()
    TAKEN = enum.auto()
    LEFT = enum.auto()  # the world has moved on otherwise: nothing is proposed any more


class Commands:
    """Executes commands in a world.

    Attributes:
        last: the effect of the last released frame.
        finished: the command that the latest one has finished: itself, or a `let` whose frame
            was held at a breakpoint and has now passed. Empty while the switch holds a frame, and
            after an error.
    """

    def __init__(self, world: LessonWorld) -> None:
        self.world = world
        self.last: FrameStep | None = None
        self.finished = ""
        self._held_by = ""
        self._is_held = False  # what the latest command let go
        self._before = world.position
        self._done: dict[str, Callable[..., list[str]]] = {
            "let": self._let,
            "drop": self._drop,
            "dup": self._dup,
            "delay": self._delay,
            "forge": self._forge,
            "repeat": self._repeat,
            "kill": self._kill,
            "go": self._go,
            "frames": self._frames,
            "show": self._show,
            "ranks": self._ranks,
            "slots": self.slots,
            "registers": lambda: [f"  {each}" for each in legend()],
            "lines": self._lines,
            "break": self._break,
            "unbreak": self._unbreak,
            "step": self._step,
            "continue": self._continue,
            "inspect": self._inspect,
            "help": lambda: HELP.splitlines(),
        }

    def do(self, text: str) -> list[str]:
        """Execute a command; return the answer.

        Raises:
            CommandError: there is no such command, or it has other arguments.
            NoSuchFrameError: there is no such frame or rank.
        """
        self.finished, self._is_held, self._before = "", False, self.world.position
        name, *arguments = text.split()
        if name not in self._done:
            raise CommandError(f"there is no command {name!r}; help lists them")
        try:
            said = self._done[name](*arguments)
        except TypeError:
            rows = (row.strip() for row in HELP.splitlines() if row.split()[0] == name)
            usage = next(rows, name)
            raise CommandError(f"it is: {usage}") from None
        self._note(name, text)
        return said

    def state_of(self, proposed: str) -> StepState:
        """Return what the latest command has made of a step; `proposed` is that step's command."""
        if self.finished.split() == proposed.split():
            return StepState.TAKEN
        moved = self.world.position != self._before
        return StepState.LEFT if moved and not self._is_held else StepState.OPEN

    def _note(self, name: str, text: str) -> None:
        """Keep which command is finished."""
        held = self.last is not None and self.last.stop is not None
        if name in ("let", "go") and held:
            self._held_by = text
        self.finished = text
        if name in ("let", "go", "step", "continue"):
            self._is_held = held
            self.finished = "" if held else (self._held_by or text)
            self._held_by = self._held_by if held else ""

    def _let(self, number: str) -> list[str]:
        self.last = self.world.let(_number(number))
        return came_of(self.last)

    def _drop(self, number: str) -> list[str]:
        return [f"lost: {line(self.world.drop(_number(number)))}"]

    def _dup(self, number: str) -> list[str]:
        return [f"copied: {line(self.world.duplicate(_number(number)))}"]

    def _delay(self, number: str) -> list[str]:
        return [f"behind all others: {line(self.world.delay(_number(number)))}"]

    def _forge(self, number: str, change: str, *more: str) -> list[str]:
        fields = {}
        for each in (change, *more):
            name, equals, value = each.partition("=")
            if not equals:
                raise CommandError(f"{each!r} is not FIELD=VALUE, like round=3")
            fields[name] = _number(value)
        return [f"made: {line(self.world.forge(_number(number), **fields))}"]

    def _repeat(self, rank: str) -> list[str]:
        sent = self.world.repeat(_number(rank))
        return [f"rank {rank} repeats: {line(held)}" for held in sent] or [
            f"rank {rank} has nothing to repeat: it waits for no answer"
        ]

    def _kill(self, rank: str) -> list[str]:
        self.world.kill(_number(rank))
        return [
            f"rank {rank} is dead. The others repeat in vain, until its lease runs out at the "
            "controller and their calls end with WorkerLostError."
        ]

    def _go(self) -> list[str]:
        said: list[str] = []
        for _ in range(MOST):
            if not self.world.flying:
                return said or ["no frame is on its way"]
            self.last = self.world.let(self.world.flying[0].number)
            step = self.last
            if step.stop is not None:
                return [*said, *came_of(step)]
            what = step.state if step.outcome is None else step.outcome.label
            said.append(f"{line(step.frame)}: {what}")
        raise CommandError(f"after {MOST} frames there are more: frames circulate")

    def _frames(self) -> list[str]:
        return [line(held) for held in self.world.flying] or ["no frame is on its way"]

    def _show(self, number: str) -> list[str]:
        wanted = _number(number)
        shown = [held for held in self.world.flying if held.number == wanted]
        if not shown and self.last is not None and self.last.frame.number == wanted:
            shown = [self.last.frame]
        if not shown:
            raise CommandError(f"frame #{wanted} is neither on its way nor the last one")
        return details(shown[0])

    def _ranks(self) -> list[str]:
        return [f"rank {rank.number}: {rank.state}" for rank in self.world.ranks]

    def slots(self) -> list[str]:
        """Return the slots' registers."""
        said: list[str] = []
        for slot in range(self.world.slots):
            registers = self.world.registers(slot)
            said += [f"slot {slot}", *(f"  {each}" for each in changes(registers, registers))]
        return said

    def _lines(self) -> list[str]:
        if self.last is None or not self.last.lines:
            return ["the last frame went to no switch"]
        return [f"  {each}" for each in dict.fromkeys(self.last.lines)]

    # -- The debugger, as of `p4reduce-switch --debug` ---------------------------------------------

    def _break(self, *place: str) -> list[str]:
        debugger = self.world.switch.debugger
        if not place:
            return [f"  {number}: {at}" for number, at in debugger.breakpoints.items()] or [
                "no breakpoint is set"
            ]
        try:
            found = parse_breakpoint(" ".join(place))
            return [f"breakpoint {debugger.add(found)}: {found}"]
        except ValueError as error:
            raise CommandError(str(error)) from None

    def _unbreak(self, number: str) -> list[str]:
        try:
            self.world.switch.debugger.delete(_number(number))
        except ValueError as error:
            raise CommandError(str(error)) from None
        return [f"breakpoint {number} is gone"]

    def _step(self) -> list[str]:
        self.last = self.world.go_on(steps=True)
        return came_of(self.last)

    def _continue(self) -> list[str]:
        self.last = self.world.go_on(steps=False)
        return came_of(self.last)

    def _inspect(self, text: str = "") -> list[str]:
        step = self.last
        if step is None or step.stop is None:
            raise CommandError("the switch holds no frame: set a breakpoint, and let a frame go")
        return values(step.stop, text) or [f"no value's name contains {text!r}"]


def _number(text: str) -> int:
    try:
        return int(text.removeprefix("#"), 0)
    except ValueError:
        raise CommandError(f"{text!r} is not a number") from None
