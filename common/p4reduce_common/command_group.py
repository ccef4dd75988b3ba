# SPDX-License-Identifier: Apache-2.0
"""A group of commands whose list shows each command's first sentence in full."""

from __future__ import annotations

import click

_NOTHING_CUT_OFF = 10_000  # characters


class CommandGroup(click.Group):
    """Lists its commands, each with its whole first sentence.

    click itself cuts the sentence at the terminal's width.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, as `click.Group` does."""
        rows = [
            (name, command.get_short_help_str(_NOTHING_CUT_OFF))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
