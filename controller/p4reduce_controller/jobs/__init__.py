# SPDX-License-Identifier: Apache-2.0
"""Jobs and ranks, as decisions without a switch, a disk or a network.

Imports `topology` and `values`, and of the control API what jobs can be called. Time comes in as
an argument, so that tests need no clock.

A rank is lost in one of three ways: no heartbeat (leases.py), its process has ended (presence.py),
or the switch does not answer it, but others (silence.py). Slots are chosen by holdings.py; which
switches a job is on by plan.py. A module more than a dozen, as each has one of these decisions.
"""
