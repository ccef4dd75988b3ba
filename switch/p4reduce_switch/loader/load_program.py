# SPDX-License-Identifier: Apache-2.0
"""Loads p4c's BMv2 JSON into a checked `Program`.

The format is behavioral-model's docs/JSON_format.md, version 2. Unsupported constructs are refused
with their name and source line, so a program that loads runs as written.

Each kind of construct has a module of its own. This module only decides their order, because later
ones refer to earlier ones.
"""

from __future__ import annotations

import functools
import json

from p4reduce_switch.loader.actions import load_action
from p4reduce_switch.loader.checksums import load_calculation, load_checksums
from p4reduce_switch.loader.context import LoaderContext
from p4reduce_switch.loader.controls import load_controls
from p4reduce_switch.loader.externs import load_state
from p4reduce_switch.loader.first_uses import FirstUses
from p4reduce_switch.loader.headers import Headers
from p4reduce_switch.loader.json_values import (
    DAMAGE,
    Json,
    as_number,
    as_text,
    damaged,
    refusal,
    source_of,
)
from p4reduce_switch.loader.parser import load_deparser, load_parser
from p4reduce_switch.loader.tables import negative_arguments
from p4reduce_switch.program import ir
from p4reduce_switch.program.load_error import LoadError


# A program is loaded more than once where a controller takes a switch up again, and by each of the
# switches that one process simulates.
@functools.lru_cache(maxsize=4)
def load(config: bytes | str) -> ir.Program:
    """Load a program. A program that was loaded before is returned again, because it never changes.

    Raises:
        LoadError: `config` is not BMv2 JSON, or needs what this switch does not support.
    """
    try:
        root = json.loads(config, parse_constant=_no_number)
    except RecursionError:
        raise LoadError("not the BMv2 JSON format: lists or objects nested too deeply") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise LoadError(f"not JSON: {error}") from None
    if not isinstance(root, dict):
        raise LoadError("the JSON is not an object; p4c's output for BMv2 is")
    try:
        return _load_program(root)
    except RecursionError:
        raise LoadError("a part of the program is nested too deeply") from None
    except DAMAGE as error:
        raise damaged(error) from error


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number in JSON")


def _load_program(root: Json) -> ir.Program:
    version = root.get("__meta__", {}).get("version", [2, 0])
    if version[0] != 2:
        raise LoadError(f"BMv2 JSON version {version[0]}.{version[1]}; version 2 is needed")
    mentions = FirstUses(root)
    for item in root.get("extern_instances", ()):
        name = item["name"]
        raise refusal(f"extern instance '{name}'", source_of(item, mentions.of(name)))
    context = LoaderContext(Headers(root, mentions), mentions, negative_arguments(root))
    load_state(context, root)
    for item in root["calculations"]:
        name = item["name"]
        context.calculations[name] = load_calculation(
            context, item, source_of(item, mentions.of(name))
        )
    for item in root["actions"]:
        context.actions[item["id"]] = load_action(context, item)
    verify, update = load_checksums(context, root["checksums"])
    ingress, egress = load_controls(context, root["pipelines"])
    errors = {
        as_text(name, "the name of an error"): as_number(number, f"the number of error {name}")
        for name, number in root.get("errors", ())
    }
    intrinsic = context.headers.intrinsic(root.get("field_aliases", ()))
    parser = load_parser(context, root["parsers"], errors)
    deparser = load_deparser(context, root["deparsers"])
    return ir.Program(
        headers=context.headers.by_name,
        errors=errors,
        intrinsic=intrinsic,
        parser=parser,
        verify=verify,
        ingress=ingress,
        egress=egress,
        update=update,
        deparser=deparser,
        actions=context.actions,
        calculations=context.calculations,
        kept=context.kept,
    )
