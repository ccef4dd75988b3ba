# SPDX-License-Identifier: Apache-2.0
"""A worker's side of the protocol: slots, timers, the window, blocks to lanes of frames.

It says what is to be sent, and by its timers when to send it again; `session.engine` does the
sending. Imports `tensors` and `wire`, and of `transport` how much is received at once.
"""
