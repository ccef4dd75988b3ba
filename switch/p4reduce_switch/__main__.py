# SPDX-License-Identifier: Apache-2.0
"""`python -m p4reduce_switch` is `p4reduce-switch`."""

from .cli import main

main()
