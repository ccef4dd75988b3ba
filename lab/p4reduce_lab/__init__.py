# SPDX-License-Identifier: Apache-2.0
"""Starts all the rest on one machine: the demo, commands of the user's own, networks, switches.

`commands` has the commands, `choice` decides which switch and which network a run takes; `system`
starts a switch and its controller, `side_by_side` and `tree` several, out of `switches`, `networks`
and `processes`. On top of it is a module or folder for each command: `demo` and `torch_demo` (`make
run`), `execute`, `up`, `lab`, `compare`, `planning` (`plan`), `timeline`. `measured` keeps what was
measured. May import all packages; of them none imports it, only `bench/` and `experiments/` do.
"""
