# SPDX-License-Identifier: Apache-2.0
"""Which programs may run on several cores, each with a state of its own.

A program permits it by an annotation of its package: `@several_cores V1Switch(...) main`, which p4c
writes into the P4Info. Other programs would not see packets of other cores, because each core has
its own registers, counters and tables.
"""

from __future__ import annotations

import logging
from typing import Any

from p4reduce_switch.errors import too_early
from p4reduce_switch.ports.core import Core

log = logging.getLogger(__name__)

ANNOTATION = "@several_cores"

_WHY = f"its package has no {ANNOTATION}, so all its packets have to come to one core"


def may_have_several(p4info: Any) -> bool:
    """Whether the program of a P4Info may run on several cores."""
    return ANNOTATION in p4info.pkg_info.annotations


def check_core(p4info: Any, core: Core) -> None:
    """Check that a program may be loaded on this core.

    Raises:
        P4RuntimeError: FAILED_PRECONDITION, the program may run on the first core only.
    """
    if core.count == 1 or may_have_several(p4info):
        return
    if core.number:
        raise too_early(
            f"this device is core {core.number} of {core.count}, and the program is for one core: "
            f"{_WHY}. Set it on the first device alone, or start the switch without --cores"
        )
    log.warning(
        "the program keeps one of the %d cores: %s; the others stay as they are, and take workers "
        "of p4reduce only",
        core.count,
        _WHY,
    )
