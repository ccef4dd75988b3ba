# SPDX-License-Identifier: Apache-2.0
"""A worker's side of the protocol: slots, timers, the window, blocks to lanes of frames.

Imports `wire` and `tensors`. What it wants sent, and when, is up to `session.engine`.
"""
