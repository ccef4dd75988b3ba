# SPDX-License-Identifier: Apache-2.0
"""From arrays to blocks, lanes and streams of blocks, and back: all arithmetic of a worker.

`blocks` cuts arrays, `measure` finds each block's exponent and the zeros that are skipped, and
`copy_pool` has memory for copies. `stream` is one collective's blocks on their way, and `call_log`
has those that are not over. `continuing` says where they go on after a loss, and `endings` has the
errors that one may end with. `quantise` and `stochastic` have the factors of lanes, `fusion` joins
small tensors, and `sparse` has rows and blocks that were never dense. Of the other folders it
imports `wire` only; it knows no sockets, no controller, and no timers. More than a dozen modules:
one for each kind of number and each kind of sparse tensor.
"""
