# SPDX-License-Identifier: Apache-2.0
"""Serves the debugger at a Unix socket: lines of text in, lines of JSON out, one client at a time.

A person types into `socat - UNIX:PATH`; a program reads the JSON. Each command has one answer,
{"ok": …} or {"error": …}. When a packet is held, {"stopped": …} is sent too. When the client
disconnects, its breakpoints are deleted and the switch forwards as before.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p4reduce_common.threads import new_thread

from p4reduce_switch.debug.breakpoints import parse_breakpoint
from p4reduce_switch.debug.debugger import Debugger, NotStoppedError, Stop
from p4reduce_switch.debug.lookup import full_name, matching
from p4reduce_switch.ports.unix import prepare_socket_path

_MOST_BYTES = 4096  # of a command
_MOST_CELLS = 1024  # of one answer
_SEND_S = 5.0
"""So long a client may take for what it is sent; one that reads nothing is left."""


@contextlib.contextmanager
def serving_console(path: Path, debugger: Debugger) -> Iterator[None]:
    """Serve the debugger at a path that only this user can open, while the block runs.

    Raises:
        OSError: nothing can listen there.
    """
    prepare_socket_path(path, socket.SOCK_STREAM)
    console = _Console(path, debugger)
    thread = new_thread(console.serve, "debugger")
    thread.start()
    try:
        yield
    finally:
        console.close()
        thread.join(_SEND_S)
        path.unlink(missing_ok=True)


class _Console:
    def __init__(self, path: Path, debugger: Debugger) -> None:
        self._debugger = debugger
        self._end_fd = os.eventfd(0)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self._listener.bind(os.fspath(path))
        finally:
            os.umask(before)
        self._listener.listen()

    def close(self) -> None:
        os.eventfd_write(self._end_fd, 1)
        self._debugger.unwatch()

    def serve(self) -> None:
        """Until `close`: one client after the other."""
        with self._listener:
            while self._wait_for(self._listener):
                client, _ = self._listener.accept()
                with client:
                    self._serve(client)
        os.close(self._end_fd)

    def _wait_for(self, source: socket.socket) -> bool:
        """Whether there is something to read; False: it is over."""
        poll = select.poll()
        for descriptor in (source.fileno(), self._end_fd):
            poll.register(descriptor, select.POLLIN)
        return self._end_fd not in dict(poll.poll())

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(_SEND_S)
        sending = threading.Lock()

        def send(message: Mapping[str, Any]) -> None:
            with sending, contextlib.suppress(OSError):
                client.sendall(json.dumps(message).encode() + b"\n")

        self._debugger.watch(lambda stop: send({"stopped": _described(stop)}))
        rest = b""
        try:
            while self._wait_for(client):
                data = client.recv(_MOST_BYTES)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > _MOST_BYTES:
                    send({"error": f"a command has at most {_MOST_BYTES} bytes"})
                    return
                for line in lines:
                    command = line.decode("utf-8", "replace").strip()
                    send(self._answer(command))
                    if command == "quit":
                        return
        except OSError:
            return
        finally:
            self._debugger.unwatch()

    def _answer(self, line: str) -> Mapping[str, Any]:
        name, _, argument = line.partition(" ")
        command = _COMMANDS.get(name)
        if command is None:
            return {"error": f"'{name}' is not a command; commands are {', '.join(_COMMANDS)}"}
        try:
            return {"ok": command(self._debugger, argument.strip())}
        except (ValueError, LookupError, NotStoppedError) as error:
            return {"error": str(error.args[0])}


def _described(stop: Stop) -> dict[str, Any]:
    return {**asdict(stop.point), "why": stop.why}


def _break(debugger: Debugger, argument: str) -> Any:
    place = parse_breakpoint(argument)
    number = debugger.add(place)
    return {"breakpoint": number, "at": debugger.breakpoints[number]}


def _delete(debugger: Debugger, argument: str) -> Any:
    if not (argument.isascii() and argument.isdigit()):
        raise ValueError(f"'{argument}' is not the number of a breakpoint: delete NUMBER")
    debugger.delete(int(argument))
    return {}


def _cells(argument: str, usage: str) -> tuple[str, int, int]:
    """Read a name, the first cell and how many."""
    name, *numbers = argument.split()[:3] or [""]
    if not name or not all(number.isascii() and number.isdigit() for number in numbers):
        raise ValueError(f"'{argument}' does not read as: {usage}")
    first, count = [*map(int, numbers), *(0, 16)[len(numbers) :]]
    return name, first, min(count, _MOST_CELLS)


def _register(debugger: Debugger, argument: str) -> Any:
    name, first, count = _cells(argument, "register NAME [FIRST [COUNT]]")
    return {"first": first, "cells": debugger.register(name, first, count)}


def _counter(debugger: Debugger, argument: str) -> Any:
    name, first, count = _cells(argument, "counter NAME [FIRST [COUNT]]")
    cells = debugger.counter(name, first, count)
    return {"first": first, "packets": [p for p, _ in cells], "bytes": [b for _, b in cells]}


def _print(debugger: Debugger, argument: str) -> Any:
    values = debugger.stop.values
    shown = {
        name: value
        for name, value in values.items()
        if not argument or name == argument or name.startswith(f"{argument}.")
    }
    if shown:
        return shown
    if matching(argument, values, fields=True):
        name = full_name("field", argument, values)
        return {name: values[name]}
    header, _, _ = argument.partition(".")
    if values.get(header) is False or values.get(header) == 0:
        raise LookupError(f"header '{header}' is not valid in this packet here: it has no fields")
    own = sorted(name.partition(".")[2] for name in values if name.startswith(f"{header}."))
    if own:
        raise LookupError(f"'{argument}' is not a field of {header}; it has {', '.join(own)}")
    there = ", ".join(sorted({name.partition(".")[0] for name in values if name[0] != "$"}))
    raise LookupError(
        f"'{argument}' is not a field or header of this packet here; it has {there} "
        "(scalars and userMetadata are your own)"
    )


def _go_on(steps: bool) -> Callable[[Debugger, str], Any]:
    def go_on(debugger: Debugger, argument: str) -> Any:
        debugger.go_on(steps=steps)
        return {}

    return go_on


def _pause(debugger: Debugger, argument: str) -> Any:
    debugger.pause()
    return {}


def _help(debugger: Debugger, argument: str) -> Any:
    return _USAGE


_USAGE = {
    "break": "table NAME, action NAME, state NAME, control NAME, line [FILE:]NUMBER or "
    "field NAME VALUE: stop there",
    "delete": "NUMBER: delete a breakpoint",
    "list": "show the breakpoints",
    "continue": "run to the next breakpoint",
    "step": "run to the next point",
    "pause": "stop at the next point that any packet reaches",
    "where": "show the packet's place",
    "print": "[HEADER or FIELD]: show the packet's fields",
    "register": "NAME [FIRST [COUNT]]: show cells of a register",
    "counter": "NAME [FIRST [COUNT]]: show packets and bytes of a counter",
    "help": "show this list",
    "quit": "release the packet, delete the breakpoints and disconnect",
}
_COMMANDS: Mapping[str, Callable[[Debugger, str], Any]] = {
    "break": _break,
    "delete": _delete,
    "list": lambda debugger, argument: debugger.breakpoints,
    "continue": _go_on(steps=False),
    "step": _go_on(steps=True),
    "pause": _pause,
    "where": lambda debugger, argument: _described(debugger.stop),
    "print": _print,
    "register": _register,
    "counter": _counter,
    "help": _help,
    "quit": lambda debugger, argument: {},  # `_serve` disconnects
}
