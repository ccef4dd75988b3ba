# SPDX-License-Identifier: Apache-2.0
"""How frames come in and go out: packet sockets, Unix sockets, UDP, captures, queues at egress.

Imports nothing of the other folders; a port knows no program.
"""
