# SPDX-License-Identifier: Apache-2.0
"""Child processes, and the clean-up of everything that a run made.

Imports none of the other folders.
"""
