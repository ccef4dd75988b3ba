# SPDX-License-Identifier: Apache-2.0
"""Code that worker, switch, controller and lab share (threads, addresses, signals, TLS files,
P4Runtime's messages), and the commands' messages about missing extras.

It imports nothing else of p4reduce, so that each of them can stand without the others.
"""
