# SPDX-License-Identifier: Apache-2.0
"""A switch as a process: opens ports, serves P4Runtime, and ends at a signal.

What the command lines share (`cli`, `simple_switch`); they only read options. Imports `p4runtime`,
`ports`, `state`, `debug`, and the choices of pipeline and data plane.
"""
