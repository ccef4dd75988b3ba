# SPDX-License-Identifier: Apache-2.0
"""Starts all the rest on one machine: the demo, commands of the user's own, networks, switches.

A module for each command (`execute`, `up`, `lab`, `demo.run`), all on top of `system`. May import
all packages; none imports it.
"""
