# SPDX-License-Identifier: Apache-2.0
"""A debugger for the P4 programs that run here: breakpoints, steps, and a look at a packet's state.

`pipeline` runs a program in Python with a call at each of its points, `debugger` decides where to
stop and holds the packet there, `console` serves that at a Unix socket. Imports the pipeline,
`program`, `codegen_python`, and of `ports` how a socket is made.
"""
