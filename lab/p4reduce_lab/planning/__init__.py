# SPDX-License-Identifier: Apache-2.0
"""How long an all-reduce, and a step of training, takes on a network: the model of time.

One piece of code for `p4reduce-lab plan` and for the pictures of `make scale`. From below:
`framing` says what is on the wire, `network` describes links, switches and hosts, and `window` how
many slots send. `events` and `ring` have the time of one all-reduce, `schemes` that of each way to
sum, and `training` that of a step. On top, `profile` measures a script, `sizing` finds slots,
window and switches, and `advice` puts all of it together. `report` and `picture` show it, and
`commands` writes the proposal as commands. `home` is a closed form for a plan with `--hosts`, which
`hosts` reads, and `home_report` shows it. Of the rest of the lab this imports `errors`, `plots` and
`units`.
"""
