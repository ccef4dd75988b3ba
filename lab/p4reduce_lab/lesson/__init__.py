# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab lesson``: the protocol frame by frame, at the reader's pace.

Everything is in one process, and no clock runs. `ranks` has the worker's own slots. `traced` has
the switch's P4 program and the lines of it that a frame ran through. `world` has the frames between
them, which wait until the reader lets them go. `describe` puts frames and registers into words,
`commands` has the commands, and `lessons` the six lessons; `terminal` and `page` (in a browser)
show them. Imports nothing else of the lab but `errors`.
"""
