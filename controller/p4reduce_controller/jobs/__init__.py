# SPDX-License-Identifier: Apache-2.0
"""Jobs and ranks: decisions without a switch, a disk or a network.

Imports `topology` and `values`, and the rules for job names from the control API. Time is an
argument, so tests need no clock.

There are three ways to lose a rank. Its heartbeats stop (leases.py), its process ends
(presence.py), or the switch answers only other ranks (silence.py). holdings.py chooses slots, and
plan.py chooses switches. Each module makes one kind of decision.
"""
