# SPDX-License-Identifier: Apache-2.0
"""Machine code for p4reduce: C that is compiled when it is needed, and loaded by ctypes.

Nothing here imports anything else of p4reduce. The C sources are in `csrc/`.
"""
