# SPDX-License-Identifier: Apache-2.0
"""What outlives a packet: tables, profiles, groups, meters, digests, registers and the like.

One module for each kind of object, so there are more than a dozen. Imports none of the other
folders.
"""
