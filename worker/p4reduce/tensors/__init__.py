# SPDX-License-Identifier: Apache-2.0
"""From arrays to blocks, lanes and streams of blocks, and back: all arithmetic of a worker.

Imports `wire` only; knows no sockets, no controller, and no timers. More than
a dozen modules: one for each kind of number and each kind of sparse tensor.
"""
