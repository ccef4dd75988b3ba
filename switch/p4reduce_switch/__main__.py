# SPDX-License-Identifier: Apache-2.0
"""`python -m p4reduce_switch` is `p4reduce-switch`."""

from p4reduce_common.commands import switch

switch()
