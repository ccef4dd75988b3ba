# SPDX-License-Identifier: Apache-2.0
"""How a worker names one of the cores behind a port (`p4reduce-switch --cores`).

Each core is a data plane with slots of its own, and all have the same ports. A UDP port is one
address: the handshake (`udp_handshake`) says which core is meant, and the kernel delivers it there.
A Unix port is a socket for each core: the first one's is the port's own path.
"""

from __future__ import annotations

MAX_CORES = 16


def path_at_core(path: str, core: int) -> str:
    """Return the path of a Unix port's socket at a core, from 0: PATH, PATH.core1, PATH.core2."""
    return f"{path}.core{core}" if core else path


def core_of_token(token: bytes, cores: int) -> int:
    """Return the core that a UDP peer's token belongs to.

    The switch draws tokens until one is its own, so that datagrams from an address that the kernel
    does not know still come to the core that knows the token.
    """
    return token[-1] % cores
