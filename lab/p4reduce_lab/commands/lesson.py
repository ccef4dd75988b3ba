# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab lesson``."""

from __future__ import annotations

import socket

import click
from p4reduce_common.host_port import parse_host_port

LESSONS_THERE = 6


@click.command()
@click.argument("number", type=click.IntRange(1, LESSONS_THERE), required=False)
@click.option("--play", is_flag=True, help="Take the lesson's steps without asking.")
@click.option("--web", is_flag=True, help="Show the lessons in a browser, to be clicked through.")
def command(number: int | None, play: bool, web: bool) -> None:
    """Learn the protocol frame by frame: lesson NUMBER, or the list of lessons.

    Two ranks, a slot and the real P4 program are in this one process. Frames wait until you let
    them go; you can drop, copy, delay and forge them, and see each header, the P4 lines that act on
    it, and the registers before and after.

    \b
    Examples:
      p4reduce-lab lesson
      p4reduce-lab lesson 3
      p4reduce-lab lesson --web
    """
    from p4reduce_lab.lesson.lessons import LESSONS
    from p4reduce_lab.lesson.terminal import run

    if web:
        _show_page(number or 1)
    elif number is None:
        for at, lesson in enumerate(LESSONS, start=1):
            click.echo(f"  {at}  {lesson.title}")
    else:
        run(LESSONS[number - 1], click.echo, None if play else input)


def _show_page(number: int) -> None:
    from p4reduce_lab import live_page
    from p4reduce_lab.lesson.page import serve

    address = live_page.free_address()
    with socket.create_server(parse_host_port(address)) as listener:
        click.echo(f"{live_page.show(address)}  (Ctrl-C ends it)")
        serve(number, listener)
