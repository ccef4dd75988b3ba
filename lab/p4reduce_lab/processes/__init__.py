# SPDX-License-Identifier: Apache-2.0
"""Child processes, and what makes sure that nothing of a run stays behind.

Imports none of the other folders.
"""
