# SPDX-License-Identifier: Apache-2.0
"""How frames come in and go out: packet sockets, Unix sockets, UDP, captures.

Imports nothing of the other folders; a port knows no program. Python opens and closes ports, and
p4reduce_native passes their frames: the loop and the links in C, and the handshake of UDP.
"""
