# SPDX-License-Identifier: Apache-2.0
"""The process of one core: `python -m p4reduce_switch.cores.core`, started by `host`.

It reads its settings from standard input, and ends when its parent ends.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys

from p4reduce_common.logs import configure
from p4reduce_common.output import command

from p4reduce_switch.cores.order import Order
from p4reduce_switch.process.run import run
from p4reduce_switch.process.settings import StartError

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Run a core until a signal, or until its parent ends."""
    # By this process's parent, over a pipe that nobody else holds.
    order = pickle.load(sys.stdin.buffer)
    assert isinstance(order, Order)
    libc = ctypes.CDLL(None, use_errno=True)
    # At once, so that the switch can be started again without a wait for its ports.
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != order.parent:
        sys.exit(f"the process that started this core (pid {order.parent}) has gone")
    settings = order.settings
    configure(order.log.level, order.log.format, f"core {settings.core.number}")
    with command(settings.name):
        try:
            run(settings)
        except StartError as error:
            sys.exit(f"{settings.name}: {error}")


if __name__ == "__main__":
    main()
