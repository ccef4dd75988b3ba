# SPDX-License-Identifier: Apache-2.0
"""The live page of a started system: its port, and its address for people."""

from __future__ import annotations

import os
import socket
import sys
import webbrowser

from p4reduce_lab.errors import LabError

HOST = "127.0.0.1"
PREFERRED = range(8080, 8180)
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def free_address(preferred: range = PREFERRED) -> str:
    """Return HOST:PORT with the first free port. Raises LabError: none of them is free."""
    for port in preferred:
        with socket.socket() as probe:
            # As the controller binds it: a port whose last connections are closing is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return f"{HOST}:{port}"
    raise LabError(
        f"no port is free for the live page: all of {preferred[0]} to {preferred[-1]} are taken. "
        "End what listens there, or leave out --web"
    )


def show(address: str) -> str:
    """Open the page in a browser if there is a screen; return a line about it."""
    url = f"http://{address}/"
    # Without a display it may start a text browser here, and the command would wait for that.
    if sys.platform == "darwin" or any(os.environ.get(name) for name in _DISPLAYS):
        webbrowser.open(url)
    return f"Live page: {url}"
