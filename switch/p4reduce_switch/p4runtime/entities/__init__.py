# SPDX-License-Identifier: Apache-2.0
"""Each kind of P4Runtime entity between its message and the pipeline's own form.

Imports `state`, P4Info and byte strings; read, write and server build on it.
"""
