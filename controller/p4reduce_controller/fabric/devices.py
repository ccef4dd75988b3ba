# SPDX-License-Identifier: Apache-2.0
"""Which devices a P4Runtime server has.

P4Runtime cannot list devices. An embedded switch with several cores lists them in the metadata of
Capabilities. On other servers only the given device is known.
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
    """Return a device and those that follow it on its server: the further cores of one switch.

    Waits for the server. Raises NoSwitchAnswerError, TlsError.
    """
    said = wait_for_server(address, timeout, files)
    there = [int(number) for number in re.findall(r"\d+", said.get(DEVICES_METADATA, ""))]
    if device_id not in there:
        return (device_id,)
    return tuple(there[there.index(device_id) :])
