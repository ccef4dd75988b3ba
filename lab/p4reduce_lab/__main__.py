# SPDX-License-Identifier: Apache-2.0
"""`python -m p4reduce_lab` is `p4reduce-lab`."""

from p4reduce_common.commands import lab

lab()
