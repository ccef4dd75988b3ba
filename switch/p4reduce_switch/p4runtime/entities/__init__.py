# SPDX-License-Identifier: Apache-2.0
"""Converts each kind of P4Runtime entity between its message and the pipeline's form.

`registry` lists all kinds, with the functions that write and read them. Imports `state`, and from
`p4runtime` the P4Info, byte strings and the configuration. Read, write and server use it.
"""
