# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-switch --cores`: several data planes with one address and one set of ports.

A parent process (`host`) starts a process per core (`child`, `core`), and restarts it if it ends.
It serves P4Runtime for all cores (`front`), each as a device, and /metrics (`metrics`). No frame
passes through it. Imports `process`, `p4runtime`, `ports` and `rate_limited_log`.
"""
