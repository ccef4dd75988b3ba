# SPDX-License-Identifier: Apache-2.0
"""A network for workers on any hosts: switch, controller, key, token and certificates, watched.

`arrangement` chooses one switch, several side by side or a tree. `credentials` makes tokens, keys
and certificates, and `plan` chooses them and the ports. `services` starts and restarts the
processes. `supervisor` is the process that `p4reduce.launch` starts, `command_line` is
`p4reduce-lab deploy`; `serving` is for both. Imports `planning`, `processes`, and `switches`.
"""

from p4reduce.errors import LaunchError
from p4reduce.launch import Network, start

__all__ = ["LaunchError", "Network", "start"]
