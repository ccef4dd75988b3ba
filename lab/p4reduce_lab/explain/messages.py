# SPDX-License-Identifier: Apache-2.0
"""The known error messages, and those that fit a text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from p4reduce_common.rows import markdown_table, rows_of

__all__ = ["Message", "explain", "fitting", "messages", "table_of"]

LEAST = 8
"""A message is recognised by at least this many letters."""


@dataclass(frozen=True)
class Message:
    """A row of `messages.tsv`.

    Attributes:
        section: the heading on the page that has it.
        error: the class that is raised, in backquotes; empty if the section names it.
        message: texts with ";" between them. "…" stands for what is filled in.
        cause: may be empty.
        cure: what to do, in Markdown; may be empty.
    """

    section: str
    error: str
    message: str
    cause: str
    cure: str

    def letters_in(self, text: str) -> int:
        """How many letters of the message `text` has; 0 if it is another message."""
        return max(_letters_in(part, text) for part in self.message.split(";"))

    def of_class(self, name: str) -> bool:
        """Whether this error is raised as the class `name`."""
        return name in (self.section, self.error.strip("`"))


def messages() -> tuple[Message, ...]:
    """Return all known messages, in the order of the pages."""
    return tuple(Message(**row) for row in rows_of("p4reduce_lab.explain", "messages.tsv"))


def fitting(text: str) -> list[Message]:
    """Return the messages that a text has, the longest first, or those of a class's name."""
    known = messages()
    if of_class := [one for one in known if one.of_class(text.strip())]:
        return of_class
    found = [(one.letters_in(text), one) for one in known]
    most = max(letters for letters, _ in found)
    # A shorter message may be part of a longer one, and says less.
    kept = [pair for pair in found if pair[0] >= max(LEAST, most / 2)]
    return [one for _, one in sorted(kept, key=lambda pair: -pair[0])]


def explain(found: Iterable[Message]) -> str:
    """Return what a terminal shows of messages."""
    shown = []
    for one in found:
        name = one.error.strip("`") or one.section
        parts = [("message", one.message), ("cause", one.cause), ("cure", one.cure)]
        lines = [f"  {label + ':':9}{_plain(text)}" for label, text in parts if text]
        shown.append("\n".join([name, *lines]))
    return "\n\n".join(shown)


def table_of(section: str) -> str:
    """Return the table of a section in Markdown, without columns that are empty.

    Raises:
        KeyError: no message is of that section.
    """
    rows = [one for one in messages() if one.section == section]
    if not rows:
        raise KeyError(section)
    columns = [
        name
        for name in ("error", "message", "cause", "cure")
        if any(getattr(one, name) for one in rows)
    ]
    return markdown_table(columns, [[getattr(one, name) for name in columns] for one in rows])


def _letters_in(message: str, text: str) -> int:
    """Count the letters of `message` if all its constant parts are in `text`, in their order."""
    flat, at, count = " ".join(text.lower().split()), 0, 0
    for part in re.split(r"…|\*|`", message.lower()):
        words = " ".join(part.split()).strip(" :;,.()")
        if not words:
            continue
        at = flat.find(words, at)
        if at < 0:
            return 0
        at += len(words)
        count += sum(character.isalpha() for character in words)
    return count


def _plain(text: str) -> str:
    """Markdown as a terminal shows it: a link's page follows its text."""
    text = re.sub(r"\[([^\]]+)\]\(#[^)]*\)", r"\1", text)
    text = re.sub(r"\[([^\]]+)\]\(([^)]*)\)", r"\1 (docs/\2)", text)
    return text.replace("`", "")
