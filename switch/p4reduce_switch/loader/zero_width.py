# SPDX-License-Identifier: Apache-2.0
"""Fields of no bits (`bit<0>`), which P4 allows: they are zero, and there is nothing to assign to.

They are taken out of the JSON before anything of it is loaded, so that nothing else has to know.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from p4reduce_switch.loader.json_values import Json

__all__ = ["without_fields_of_no_bits"]

_ZERO = {"type": "hexstr", "value": "0x0"}
_KEY = "$empty"
"""A field of metadata that is always zero, in the place of one of no bits in a table's key."""
_NOTHING = {"op": "no_op", "parameters": []}


def without_fields_of_no_bits(root: Json) -> Json:
    """The same program; `root` itself where it has no such fields."""
    empty = {
        type_["name"]: {field[0] for field in type_["fields"] if field[1] == 0}
        for type_ in root["header_types"]
    }
    fields = {
        (header["name"], name)
        for header in root["headers"]
        for name in empty.get(header["header_type"], ())
    }
    if not fields:
        return root
    home = next(header for header in root["headers"] if header["metadata"])
    types = [
        {
            **type_,
            "fields": [
                *(field for field in type_["fields"] if field[1] != 0),
                *([[_KEY, 1]] if type_["name"] == home["header_type"] else []),
            ],
        }
        for type_ in root["header_types"]
    ]
    return {
        **root,
        "header_types": types,
        "actions": [_of_action(action, fields) for action in root["actions"]],
        "parsers": [_of_parser(parser, fields) for parser in root["parsers"]],
        "pipelines": [
            _of_pipeline(pipeline, fields, [home["name"], _KEY]) for pipeline in root["pipelines"]
        ],
        "checksums": _replaced(root["checksums"], fields),
    }


def _of_action(action: Json, fields: set[tuple[str, str]]) -> Json:
    # Jumps count primitives, so none may be missing.
    params = {n for n, param in enumerate(action["runtime_data"]) if param["bitwidth"] == 0}
    primitives = [
        _NOTHING if _assigns(item, "assign", fields) else _replaced(item, fields, params)
        for item in action["primitives"]
    ]
    # Nothing reads such a parameter any more; an entry gives it all the same.
    data = [
        {**param, "bitwidth": 1} if number in params else param
        for number, param in enumerate(action["runtime_data"])
    ]
    return {**action, "runtime_data": data, "primitives": primitives}


def _of_pipeline(pipeline: Json, fields: set[tuple[str, str]], key: list[str]) -> Json:
    tables = [
        {
            **table,
            "key": [
                {**part, "target": key} if _is_one(part["target"], fields) else part
                for part in table["key"]
            ],
        }
        for table in pipeline["tables"]
    ]
    return {**_replaced(pipeline, fields), "tables": tables}


def _of_parser(parser: Json, fields: set[tuple[str, str]]) -> Json:
    states = [
        {
            **_replaced(state, fields),
            "parser_ops": [
                _replaced(op, fields)
                for op in state["parser_ops"]
                if not _assigns(op, "set", fields)
            ],
        }
        for state in parser["parse_states"]
    ]
    return {**parser, "parse_states": states}


def _assigns(item: Json, op: str, fields: set[tuple[str, str]]) -> bool:
    return item["op"] == op and _is_empty(item["parameters"][0], fields)


def _is_empty(item: Any, fields: set[tuple[str, str]]) -> bool:
    if not isinstance(item, dict) or item.get("type") != "field":
        return False
    return _is_one(item["value"], fields)


def _is_one(place: Any, fields: set[tuple[str, str]]) -> bool:
    """Whether a header's and a field's name are those of such a field."""
    is_name = isinstance(place, list) and all(isinstance(part, str) for part in place)
    return is_name and tuple(place) in fields


def _replaced(item: Any, fields: set[tuple[str, str]], params: Collection[int] = ()) -> Any:
    """With zero in the place of each such field and parameter."""
    if _is_empty(item, fields):
        return _ZERO
    if isinstance(item, dict):
        if item.get("type") in ("runtime_data", "local") and item["value"] in params:
            return _ZERO
        return {key: _replaced(value, fields, params) for key, value in item.items()}
    if isinstance(item, list):
        return [_replaced(value, fields, params) for value in item]
    return item
