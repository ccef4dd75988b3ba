# SPDX-License-Identifier: Apache-2.0
"""Jobs and ranks, as decisions without a switch, a disk or a network.

Imports `values`, and of the control API what jobs can be called. Time comes in as an argument, so
that tests need no clock.
"""
