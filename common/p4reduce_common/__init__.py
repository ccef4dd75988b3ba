# SPDX-License-Identifier: Apache-2.0
"""Code that switch, controller and lab share, and the messages of missing extras.

It imports nothing else of p4reduce, so that each of them can stand without the others.
"""
