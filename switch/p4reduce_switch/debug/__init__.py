# SPDX-License-Identifier: Apache-2.0
"""A debugger for P4 programs: breakpoints, steps, and a packet's state.

`pipeline` interprets a program and calls the debugger at each point. `debugger` decides where
to stop and holds the packet there. `lookup` finds names and lines. `console` serves all of it at a
Unix socket. Imports the pipeline, `program`, the interpreter's packet, and from `ports` how to make
a socket.
"""
