# SPDX-License-Identifier: Apache-2.0
"""How frames come in and go out: packet sockets, Unix sockets, UDP, captures, queues at egress.

Imports nothing of the other folders; a port knows no program. What both ends of a link share is in
p4reduce_native: the links in C, and the handshake by which a UDP port takes its peer.
"""
