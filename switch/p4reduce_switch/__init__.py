# SPDX-License-Identifier: Apache-2.0
"""The embedded switch: runs any v1model program that p4c compiled for BMv2, and serves P4Runtime.

`loader` reads the program into the types of `program`. `interpreter` runs these as they are, and
`codegen_c` turns them into C. `pipeline` and `native_pipeline` bind both to `state` and `native`.
`dataplane` gives it the frames of `ports`, and `p4runtime` serves controllers. `pipeline_choice`
decides whether a program runs as C or is interpreted; the loop and the ports are always C.
`process` is a running switch, for `cli` and for BMv2's command line in `simple_switch`. The switch
does not know aggregation, workers or the controller.
"""

from p4reduce_common.p4runtime_messages import install

install()  # before anything imports P4Runtime's messages
