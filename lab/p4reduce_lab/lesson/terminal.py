# SPDX-License-Identifier: Apache-2.0
"""A lesson at a terminal: text, a proposal, and whatever is typed."""

from __future__ import annotations

import enum
import shutil
import textwrap
from collections.abc import Callable

from p4reduce_lab.errors import LabError
from p4reduce_lab.lesson.commands import LEFT_THE_STEPS, Commands, StepState
from p4reduce_lab.lesson.lessons import LESSONS, Lesson

Ask = Callable[[str], str]
_QUIT = ("quit", "exit", "q")


def run(lesson: Lesson, say: Callable[[str], None], ask: Ask | None = None) -> Commands:
    """Go through a lesson.

    Args:
        lesson: which.
        say: shows a line.
        ask: shows a prompt and returns what is typed; raises EOFError at the end. None: the
            lesson's own steps are taken without asking.

    Returns:
        Where it ended.
    """
    while True:
        commands = Commands(lesson.begin())
        if _once(commands, lesson, say, ask) is not _PromptEnd.RESTART:
            return commands
        commands.world.close()


class _PromptEnd(enum.Enum):
    """How a prompt ended."""

    DONE = enum.auto()
    QUIT = enum.auto()
    RESTART = enum.auto()


def _once(
    commands: Commands, lesson: Lesson, say: Callable[[str], None], ask: Ask | None
) -> _PromptEnd:
    """Go through a lesson from its beginning."""
    number = LESSONS.index(lesson) + 1

    def tell(text: str) -> None:
        if text:
            say(textwrap.fill(text, min(shutil.get_terminal_size().columns, 100)))

    tell(f"Lesson {number}: {lesson.title}")
    tell(lesson.about)
    if ask is not None:
        tell(
            "Enter takes the step that is proposed. `registers` says what each register of the "
            "switch is for, and `help` what else you can do."
        )
    for scene in lesson.scenes:
        say("")
        tell(scene.text)
        end = _until_done(commands, scene.command, say, ask)
        if end is not _PromptEnd.DONE:
            return end
    say("")
    tell(lesson.ending)
    if ask is None:
        return _PromptEnd.DONE
    if number < len(LESSONS):
        tell(f"Go on with `p4reduce-lab lesson {number + 1}`, or try what you like; quit ends it.")
    return _until_done(commands, "", say, ask)


def _until_done(
    commands: Commands, proposed: str, say: Callable[[str], None], ask: Ask | None
) -> _PromptEnd:
    """Do what is typed until the proposed step was taken, or until quit or restart.

    If something else changes the lesson, nothing is proposed any more.

    Raises:
        LabError: nobody types, and the proposed step cannot be taken.
    """
    while True:
        typed: str | None = proposed
        if ask is None:
            say(f"> {proposed}")
        else:
            typed = _asked(ask, f"[{proposed}] > " if proposed else "> ")
        if typed is None:
            return _PromptEnd.QUIT
        if typed == "restart":
            return _PromptEnd.RESTART
        _do(commands, typed or proposed, say)
        if not proposed:
            continue
        state = commands.state_of(proposed)
        if state is StepState.TAKEN:
            return _PromptEnd.DONE
        if ask is None:
            raise LabError(f"the lesson's step {proposed!r} cannot be taken")
        if state is StepState.LEFT:
            say("")
            for row in LEFT_THE_STEPS:
                say(row)
            proposed = ""


def _asked(ask: Ask, prompt: str) -> str | None:
    """What is typed; None at the end."""
    try:
        typed = ask(prompt).strip()
    except EOFError:
        return None
    return None if typed in _QUIT else typed


def _do(commands: Commands, typed: str, say: Callable[[str], None]) -> None:
    """Run a command and show its result or its error."""
    if not typed:
        return
    try:
        said = commands.do(typed)
    except LabError as error:
        said = [f"  {error}"]
    for row in said:
        say(row)
