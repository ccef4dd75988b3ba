# SPDX-License-Identifier: Apache-2.0
"""`python -m p4reduce_controller` is `p4reduce-controller`."""

from p4reduce_common.commands import controller

controller()
