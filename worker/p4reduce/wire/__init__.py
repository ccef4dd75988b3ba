# SPDX-License-Identifier: Apache-2.0
"""What is on the wire: the header's format, buffers of frames, answers, calls, sets of ranks.

Imports none of the other folders. docs/protocol.md describes what it implements.
"""
