# SPDX-License-Identifier: Apache-2.0
"""`python -m p4reduce_controller`."""

from p4reduce_controller.cli.command_line import main

main()
