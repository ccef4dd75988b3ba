# SPDX-License-Identifier: Apache-2.0
"""A network for workers on any hosts: switch, controller, key, token and certificates, watched.

`whole` has a network that is all on this host, of one switch, several side by side or a tree, as
`arrangement` chooses. `share` has a host's share of one with a switch on each of several hosts.
`credentials` makes tokens, keys and certificates, `ports` finds free ports. `supervisor` is the
process that `p4reduce.launch` and the ranks of a job start, which last as long as `lifelines` are
held; `command_line` is `p4reduce-lab deploy`; `serving` is for both. Imports `planning`,
`processes`, `services` and `switches`.
"""
