# SPDX-License-Identifier: Apache-2.0
"""Starts a switch as a child process: BMv2 or the embedded one.

`udp_ports` finds free ports for the embedded switch. Imports `networks`, for veth
pairs, and `processes`.
"""
