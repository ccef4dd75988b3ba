# SPDX-License-Identifier: Apache-2.0
"""The embedded switch: runs any v1model program that p4c compiled for BMv2, and serves P4Runtime.

`loader` reads the program into the types of `program`. `codegen_python` turns it into Python and
`codegen_c` into C. `pipeline` and `native_pipeline` bind that to `state` and `native`. `dataplane`
feeds it from `ports`, and `p4runtime` lets a controller in. `pipeline_choice` decides whether a
program runs as C or in Python; the loop and the ports are always C. `process` is all of that as a
running switch, for `cli` and for BMv2's command line in `simple_switch`. It knows no aggregation,
and nothing of worker and controller.
"""

from p4reduce_common.p4runtime_messages import install

install()  # before anything imports P4Runtime's messages
