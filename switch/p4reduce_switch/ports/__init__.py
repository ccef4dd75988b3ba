# SPDX-License-Identifier: Apache-2.0
"""How frames enter and leave: packet sockets, Unix sockets, UDP, captures.

Imports none of the other folders; ports do not know the program. Python opens and closes ports.
p4reduce_native moves their frames, by the loop and links in C, and has UDP's handshake.
"""
