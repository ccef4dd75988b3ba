# SPDX-License-Identifier: Apache-2.0
"""Which devices a P4Runtime server has.

P4Runtime has no list of them. The embedded switch with several cores tells them aside when it is
asked for its version; of other servers, only the given device is known.
"""

from __future__ import annotations

import re

from p4reduce.control import tls

from p4reduce_controller.fabric.p4client import wait_for_server

# As p4reduce-switch sends it.
DEVICES_METADATA = "p4reduce-devices"


def devices_at(
    address: str, device_id: int, timeout: float, files: tls.TlsFiles | None = None
) -> tuple[int, ...]:
    """Return a device, and those of its server that follow it: further cores of one switch.

    Waits for the server. Raises SwitchUnreachableError, TlsError.
    """
    said = wait_for_server(address, timeout, files)
    there = [int(number) for number in re.findall(r"\d+", said.get(DEVICES_METADATA, ""))]
    if device_id not in there:
        return (device_id,)
    return tuple(there[there.index(device_id) :])
