# SPDX-License-Identifier: Apache-2.0
"""A worker's side of the protocol: slots and their loop.

`slots` says what is to be sent, and by its timers when to send it again; `native_iteration` is the
loop that does so. Imports `tensors`, `transport` and `wire`.
"""
