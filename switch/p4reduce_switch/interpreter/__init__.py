# SPDX-License-Identifier: Apache-2.0
"""Interprets a program's IR: the oracle of the C generator, and what the debugger runs.

There is no analysis: each field has its value at each point. `parser`, `actions` and `expressions`
make functions of the program's parts when it is loaded; `packet` is what these change. `machine`
runs a frame in the order of simple_switch. Imports `program` and `state`. The pipeline gives it
tables, counters and all else that lasts.
"""
