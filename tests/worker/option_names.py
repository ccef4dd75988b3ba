# SPDX-License-Identifier: Apache-2.0
"""What a function takes: its parameters, and the options of its `**options: Unpack[...]`."""

from __future__ import annotations

import inspect
import re

from p4reduce import options


def taken(signature: inspect.Signature) -> dict[str, object]:
    """Return each parameter's or option's annotation, and the parameters' defaults."""
    found: dict[str, object] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            found[name] = (parameter.annotation, parameter.default)
            continue
        group = re.fullmatch(r"Unpack\[(\w+)\]", parameter.annotation)
        assert group is not None, f"**{name}: {parameter.annotation}"
        found |= getattr(options, group[1]).__annotations__
    return found
