# SPDX-License-Identifier: Apache-2.0
"""Controls: graphs of tables, conditionals and calls. They must end, and fit v1model."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Mapping

from p4reduce_switch.loader.context import LoaderContext
from p4reduce_switch.loader.json_values import Json, as_text, find, located, refusal, source_of
from p4reduce_switch.loader.tables import load_profile, load_table
from p4reduce_switch.program import ir
from p4reduce_switch.program.ir import NOWHERE
from p4reduce_switch.program.load_error import LoadError


def load_controls(context: LoaderContext, items: Iterable[Json]) -> tuple[ir.Control, ir.Control]:
    """Load ingress and egress. A missing control does nothing."""
    controls = {item["name"]: _control(context, item) for item in items}
    for name in controls.keys() - {"ingress", "egress"}:
        raise LoadError(f"pipeline '{name}' is not of the v1model architecture")
    for name, control in controls.items():
        _check_stage(context, name, control)
    ingress, egress = (
        controls.get(name, ir.Control(name, None, {})) for name in ("ingress", "egress")
    )
    return ingress, egress


def _control(context: LoaderContext, item: Json) -> ir.Control:
    for profile in item.get("action_profiles", ()):
        context.profiles[profile["name"]] = load_profile(context, profile)
    nodes: dict[str, ir.Node] = {}
    for table in item["tables"]:
        with located(source_of(table)):
            nodes[table["name"]] = load_table(context, table)
    for branch in item["conditionals"]:
        with located(source_of(branch)):
            nodes[branch["name"]] = _branch(context, branch)
    for call in item.get("action_calls", ()):
        nodes[call["name"]] = _call(context, call)
    for node in nodes.values():
        for successor in node.successors:
            if successor is not None:
                find(nodes, successor, "control flow node", node.source)
    start = item["init_table"]
    if start is not None:
        find(nodes, start, "control flow node", NOWHERE)
    _check_acyclic(item["name"], nodes)
    return ir.Control(item["name"], start, nodes)


def _branch(context: LoaderContext, item: Json) -> ir.Branch:
    source = source_of(item)
    return ir.Branch(
        as_text(item["name"], "the name of a conditional"),
        context.expressions.condition(item["expression"], source),
        item["true_next"],
        item["false_next"],
        source,
    )


def _call(context: LoaderContext, item: Json) -> ir.DirectCall:
    source = source_of(item)
    action = find(context.actions, item["action_id"], "action", source)
    if action.params:
        raise LoadError(f"{source}: action '{action.name}' called without its arguments")
    return ir.DirectCall(item["name"], action.id, item["next_node"], source)


def _check_acyclic(control: str, nodes: Mapping[str, ir.Node]) -> None:
    try:
        graphlib.TopologicalSorter({n: node.successors for n, node in nodes.items()}).prepare()
    except graphlib.CycleError as error:
        raise LoadError(f"pipeline '{control}' has a loop: {', '.join(error.args[1])}") from None


def _check_stage(context: LoaderContext, name: str, control: ir.Control) -> None:
    """simple_switch ignores these primitives, or defers them, in the other control."""
    elsewhere = {"ingress": ["recirculate"], "egress": ["resubmit", "generate_digest"]}[name]
    for node in control.nodes.values():
        actions = node.actions if isinstance(node, ir.ApplyTable) else ()
        if isinstance(node, ir.DirectCall):
            actions = (node.action,)
        for action in actions:
            for statement in ir.statements(context.actions[action].body):
                if isinstance(statement, ir.Primitive) and statement.op in elsewhere:
                    raise refusal(f"primitive '{statement.op}' in {name}", statement.source)
