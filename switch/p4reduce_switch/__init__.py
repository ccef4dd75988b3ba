# SPDX-License-Identifier: Apache-2.0
"""The embedded switch: runs any v1model program that p4c compiled for BMv2, and serves P4Runtime.

`loader` reads the program, `codegen_python` turns it into Python, `pipeline` binds that to `state`,
`dataplane` feeds it from `ports`, and `p4runtime` lets a controller in. Imports nothing of the
other packages: it knows no aggregation.
"""

from p4reduce_common.p4runtime_messages import install

install()  # before anything imports P4Runtime's messages
