# SPDX-License-Identifier: Apache-2.0
"""The notation of `--queue-depth` and `--queue-rate`."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce_switch.state.queue_settings import QueueSettings

_MOST = 511  # 9 bits in v1model


def read_queue_settings(
    priorities: int, depths: Sequence[str], rates: Sequence[str]
) -> QueueSettings:
    """Parse options such as "100" (all ports) and "3=100" (port 3). The last one wins.

    Raises:
        ValueError: with a message for the user.
    """
    default = QueueSettings()
    depth, port_depths = _read("--queue-depth", depths, default.depth)
    rate, port_rates = _read("--queue-rate", rates, default.rate)
    return QueueSettings(priorities, depth, rate, port_depths, port_rates)


def _read(option: str, texts: Sequence[str], default: int) -> tuple[int, dict[int, int]]:
    of_ports: dict[int, int] = {}
    for text in texts:
        port, equals, value = text.rpartition("=")
        if not _is_number(value) or (equals and not _is_number(port)):
            raise ValueError(f"{option}: '{text}' is not of the form NUMBER or PORT=NUMBER")
        if not equals:
            default = int(value)
        elif int(port) > _MOST:
            raise ValueError(f"{option} {text}: a port is within 0 to {_MOST}")
        else:
            of_ports[int(port)] = int(value)
    return default, of_ports


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
