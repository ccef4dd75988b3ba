# SPDX-License-Identifier: Apache-2.0
"""What switch, controller and lab share, and what makes commands say which extra they lack.

It imports nothing else of p4reduce, so that each of them can stand without the others.
"""
