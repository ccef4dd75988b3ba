# SPDX-License-Identifier: Apache-2.0
"""Machine code for p4reduce: C that is compiled on demand and loaded by ctypes.

The C sources are in `csrc/`. In Python are the parts that both ends of a UDP link need: the
handshake (`udp_handshake`), and the link itself for systems without C (`datagrams`). It imports
nothing else of p4reduce.
"""
