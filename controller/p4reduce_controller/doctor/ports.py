# SPDX-License-Identifier: Apache-2.0
"""Whether the switch has the ports that the controller uses."""

from __future__ import annotations

from collections.abc import Iterable

from p4reduce_controller.doctor.finding import Finding, failure, note, ok, warning
from p4reduce_controller.fabric.switch_ports import SwitchPorts
from p4reduce_controller.terminal.render import port_ranges

NAME = "ports"


def compare(
    section: str, wanted: Iterable[int], ports: SwitchPorts | None, why: str = ""
) -> Finding:
    """Compare the controller's ports with those of the switch.

    Args:
        section: the report's section that the finding goes to.
        wanted: the ports that the controller uses.
        ports: those of the switch; None if unknown.
        why: the reason if they are unknown.
    """
    wanted = frozenset(wanted)
    if ports is None:
        return note(
            section,
            NAME,
            f"whether the switch has {port_ranges(wanted)} cannot be checked: {why}",
            "Compare serve --ports with the switch's own (p4reduce-switch --port, BMv2 -i).",
        )
    if missing := wanted - ports.there:
        has = port_ranges(ports.there) or "none"
        return failure(
            section,
            NAME,
            f"the switch has no port {port_ranges(missing)}, only {has}",
            f"serve --ports {has.replace(' ', '')}; or start the switch with those, too.",
        )
    if dark := wanted & ports.dark:
        return warning(
            section,
            NAME,
            f"no carrier on port {port_ranges(dark)}",
            "See the cable, and ip link set IFACE up on both of its ends.",
        )
    more = ports.there - wanted
    others = f"; {port_ranges(more)}, too, which the controller does not use" if more else ""
    return ok(section, NAME, f"the switch has {port_ranges(wanted)}{others}")
