# SPDX-License-Identifier: Apache-2.0
"""From arrays to blocks, lanes and streams of blocks, and back: all arithmetic of a worker.

Imports `wire` only; knows no sockets, no controller, and no timers. One module
more than a dozen: two of them are others' machine code.
"""
