# SPDX-License-Identifier: Apache-2.0
"""Starts a switch as a child process: BMv2 or the embedded one.

Imports `networks`, for veth pairs, and `processes`.
"""
