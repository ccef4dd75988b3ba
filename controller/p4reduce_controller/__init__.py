# SPDX-License-Identifier: Apache-2.0
"""The controller: the daemon that owns the switch and serves jobs, and its command line.

`jobs` decides, `fabric` puts it on the switches of the `topology`, `storage` keeps it, `service` is
asked by workers, `controller` joins them in one event loop. `daemon` makes that loop out of its
`settings`, `serving` is the process around it. `cli` is the command line and `doctor` one large
command of it; `terminal` prints, `values` has the forms of addresses and the like. Of the worker it
imports the wire format and the control API; only `doctor` uses its library.
"""

from p4reduce_common.p4runtime_messages import install

install()  # before anything imports P4Runtime's messages
