# SPDX-License-Identifier: Apache-2.0
"""Options of `p4reduce-controller serve` that all networks have."""

from __future__ import annotations

from p4reduce_lab.deploy.credentials import TlsPaths
from p4reduce_lab.switches.embedded import EmbeddedSwitch


def serve_options(listen: str, tls: TlsPaths | None, *, slots: int, lease: float) -> list[str]:
    """Return the options for jobs, and for workers and operators.

    Args:
        listen: the controller's address.
        tls: of the controller; None: none.
        slots: of a job; 0: the default.
        lease: seconds that a rank may be silent; 0: the default.
    """
    options = ["--default-slots", str(slots or EmbeddedSwitch.slots), "--listen", listen]
    if lease:
        options += ["--lease", f"{lease:g}"]
    return options if tls is None else [*options, *tls_options("--tls", tls)]


def tls_options(prefix: str, tls: TlsPaths) -> list[str]:
    """Return the options that name TLS files, such as --switch-tls-cert for "--switch-tls"."""
    named = zip(("cert", "key", "ca"), tls, strict=True)
    return [text for what, file in named for text in (f"{prefix}-{what}", str(file))]
