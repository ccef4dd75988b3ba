# SPDX-License-Identifier: Apache-2.0
"""The controller: the daemon that owns the switch and serves jobs, and its command line.

`jobs` decides what happens to a job, and `fabric` writes it to the switches of the `topology`.
`storage` keeps jobs on disk, and `service` answers workers. `controller` runs these parts in one
event loop. `daemon` builds that loop from its `settings`, and `serving` is the process around it.
`cli` is the command line, `doctor` its largest command, `terminal` prints, and `values` parses
addresses. From the worker it imports the wire format and the control API. Only `doctor` uses the
worker's library.
"""

from p4reduce_common.p4runtime_messages import install

install()  # before anything imports P4Runtime's messages
