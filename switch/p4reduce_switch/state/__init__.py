# SPDX-License-Identifier: Apache-2.0
"""State that outlives a packet: tables, profiles, groups, meters, digests, registers and the like.

Each kind of object has a module, so there are more than a dozen. Imports none of the other folders.
"""
