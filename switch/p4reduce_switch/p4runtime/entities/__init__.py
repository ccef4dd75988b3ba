# SPDX-License-Identifier: Apache-2.0
"""Each kind of P4Runtime entity between its message and the pipeline's own form.

`registry` has all kinds, each with how it is written and how it is read. Imports `state`, and of
`p4runtime` P4Info, byte strings and the configuration; read, write and server build on it.
"""
