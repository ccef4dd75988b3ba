# SPDX-License-Identifier: Apache-2.0
"""The signals that end a command in order."""

from __future__ import annotations

import signal


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return SIGINT, SIGTERM, and SIGHUP of a terminal that closes.

    SIGHUP is not among them if this process was started to ignore it, as by `nohup`.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if ignored else (signal.SIGHUP,)))
