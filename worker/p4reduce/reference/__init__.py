# SPDX-License-Identifier: Apache-2.0
"""A worker to be read: the protocol as a program that is plain, and slow.

Read the modules in this order: `frames` (what is on the wire), `numbers` (floats to lanes),
`timeout` (when a frame is sent again), `worker`, `iteration` (the loop that sends and receives).
`worker` is docs/protocol.md, "What a worker does", one frame at a time: scapy crafts and takes
apart each packet, and each rule names its section. `machine` puts the worker below a communicator,
for `p4reduce.init(engine="reference")`. `codec` takes many blocks at a time, for a rank alone.
`window` is how many slots may send at once; like `numbers` and `codec`, it loads no scapy.

It is the executable specification: tests and the model compare the engine that ships with it, step
by step. What the protocol leaves open it decides in the simplest way. All slots may send at once
(`worker` uses no `window`), each rank asks for itself ("Who asks") and for each slot ("When nothing
comes").

It imports `tensors` (what a call is, and where its numbers lie), `transport` and `wire`.
"""
