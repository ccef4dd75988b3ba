# SPDX-License-Identifier: Apache-2.0
"""Machine code for p4reduce: C that is compiled when it is needed, and loaded by ctypes.

The C sources are in `csrc/`. In Python there is what both ends of a UDP link need: the handshake
that lets a peer in (`udp_handshake`) and the link itself where there is no C (`datagrams`). Nothing
here imports anything else of p4reduce.
"""
