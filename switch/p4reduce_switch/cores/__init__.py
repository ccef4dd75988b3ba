# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-switch --cores`: several data planes with one address and one set of ports.

A parent process (`host`) starts a process for each core (`child`, `core`), again if it ends. It
serves P4Runtime for all of them (`front`), each a device, and /metrics (`metrics`). No frame passes
through it. Imports `process`, `p4runtime`, `ports` and `rate_limited_log`.
"""
