# SPDX-License-Identifier: Apache-2.0
"""The outcomes of a frame: the index of the `outcomes` counter.

The same enum is in p4src/common/constants.p4. p4c leaves the names out of the P4Info, so they are
repeated here, and a test compares them.
"""

from __future__ import annotations

import enum


class FrameOutcome(enum.IntEnum):
    """Each frame that enters the switch is counted under exactly one of these."""

    UNSET = 0
    ROUND_OPENED = 1
    ROUND_JOINED = 2
    ROUND_COMPLETED = 3
    ROUND_COMPLETED_HALVES = 4
    RESULT_REPEATED = 5
    STATUS_SENT = 6
    STALE = 7
    MALFORMED = 8
    BAD_IPV4_CHECKSUM = 9
    BAD_VERSION = 10
    UNKNOWN_KIND = 11
    UNKNOWN_FORMAT = 12
    NOT_ADMITTED = 13
    SLOT_OUT_OF_RANGE = 14
    HELLO_PUNTED = 15
    ARP_REPLIED = 16
    ECHO_REPLIED = 17
    HOST_UNHANDLED = 18
    L2_FORWARDED = 19
    L2_FLOODED = 20
    L2_HAIRPIN = 21
    PACKET_OUT_SENT = 22
    HELLO_LIMITED = 23
    FORGED_SOURCE = 24
    SUMS_SENT_UP = 25
    SUMS_SENT_UP_AGAIN = 26
    ROOM_ASKED = 27
    RESULT_PASSED_DOWN = 28
    HALF_PASSED_DOWN = 29
    STATUS_PASSED_DOWN = 30
    ANSWER_STALE = 31
    ANSWER_DUPLICATE = 32
    NOT_FROM_PARENT = 33
    STATUS_KEPT_BACK = 34

    @property
    def label(self) -> str:
        """The name for people and scripts, such as `round-opened`."""
        return self.name.lower().replace("_", "-")
