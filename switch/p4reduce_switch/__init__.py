# SPDX-License-Identifier: Apache-2.0
"""The embedded switch: runs any v1model program that p4c compiled for BMv2, and serves P4Runtime.

`loader` reads the program into the types of `program`. `codegen_python` turns it into Python and
`codegen_c` into C. `pipeline` and `native_pipeline` bind that code to `state` and `native`.
`dataplane` gives it the frames of `ports`, and `p4runtime` serves controllers. `pipeline_choice`
decides whether a program runs as C or in Python; the loop and the ports are always C. `process` is
a running switch, for `cli` and for BMv2's command line in `simple_switch`. The switch does not know
aggregation, workers or the controller.
"""

from p4reduce_common.p4runtime_messages import install

install()  # before anything imports P4Runtime's messages
