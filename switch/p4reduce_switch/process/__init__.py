# SPDX-License-Identifier: Apache-2.0
"""A switch as a process: opens ports, serves P4Runtime, and ends at a signal.

Both command lines (`cli`, `simple_switch`) use it, and only parse options themselves. Imports
`p4runtime`, `ports`, `state`, `debug`, and the choices of pipeline and data plane.
"""
