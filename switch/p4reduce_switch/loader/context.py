# SPDX-License-Identifier: Apache-2.0
"""What the modules of the loader share: the parts of the program loaded so far."""

from __future__ import annotations

from p4reduce_switch.loader.expressions import ExpressionLoader
from p4reduce_switch.loader.first_uses import FirstUses
from p4reduce_switch.loader.headers import Headers
from p4reduce_switch.program import ir


class LoaderContext:
    """The program that is being loaded. Each module adds what it loads, for later ones."""

    def __init__(
        self,
        headers: Headers,
        mentions: FirstUses,
        negative_arguments: frozenset[tuple[int, int]] = frozenset(),
    ) -> None:
        self.headers = headers
        self.mentions = mentions
        self.negative_arguments = negative_arguments
        """The id of an action and the number of a parameter, if that gets a negative argument."""
        self.expressions = ExpressionLoader(headers)
        self.kept = ir.StatefulObjects()
        self.field_lists: dict[int, ir.FieldList] = {}
        self.calculations: dict[str, ir.Calculation] = {}
        self.actions: dict[int, ir.Action] = {}
        self.profiles: dict[str, ir.ActionProfileDecl] = {}
